// Parser of torch.save files: any bytes give an Error, or a table in which every tensor lies inside its storage and every storage inside
// the file. Each input is parsed three times: as a file, as the data.pkl of a valid archive (so that the fuzzer need not learn
// checksums), and as the object of the older format.

#include <cstdint>
#include <cstdlib>
#include <string>

#include "libcore/base/error.h"
#include "libcore/weights/pth.h"
#include "tests/weights/hostile.h"

namespace {

void check(const std::string& file) {
  try {
    const galley::PthTable table = galley::parse_pth({reinterpret_cast<const std::byte*>(file.data()), file.size()});
    for (const galley::PthStorage& storage : table.storages) {
      if (storage.begin < 0 || storage.end < storage.begin || storage.end > static_cast<int64_t>(file.size())) std::abort();
    }
    for (const auto* list : {&table.tensors, &table.others}) {
      for (const galley::PthTensor& tensor : *list) {
        const galley::PthStorage& storage = table.storages.at(tensor.storage);
        int64_t last = tensor.offset;
        for (int axis = 0; axis < tensor.shape.rank(); ++axis) last += (tensor.shape[axis] - 1) * tensor.strides[axis];
        if (tensor.shape.elements() > 0 && (last + 1) * tensor.type->bytes > storage.end - storage.begin) std::abort();
      }
    }
  } catch (const galley::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace h = galley::hostile;
  const std::string input(reinterpret_cast<const char*>(data), size);
  check(input);
  check(h::make_zip(h::archive(input)));
  const std::string start =
      h::pickle(std::string("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12)) + h::pickle("M\xe9\x03") + h::pickle("}");
  check(start + input + h::pickle("](" + h::text("0") + "e") + h::little(6, 8) + std::string(24, '\0'));
  return 0;
}
