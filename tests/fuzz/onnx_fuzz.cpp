// Parser of ONNX files: any bytes give an Error or a model in which every tensor lies inside the file.

#include <cstdlib>

#include "libcore/base/error.h"
#include "libcore/onnx/onnx.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const galley::OnnxModel model = galley::parse_onnx({reinterpret_cast<const std::byte*>(data), size});
    for (const galley::OnnxTensor& tensor : model.initializers) {
      if (!tensor.dtype || !tensor.external.empty()) continue;
      if (tensor.values.defined()) {
        if (!(tensor.values.shape() == tensor.shape)) std::abort();
        continue;
      }
      if (tensor.begin < 0 || tensor.end < tensor.begin || tensor.end > static_cast<int64_t>(size)) std::abort();
      if (tensor.end - tensor.begin != tensor.shape.elements() * galley::dtype_size(*tensor.dtype)) std::abort();
    }
  } catch (const galley::Error&) {
  }
  return 0;
}
