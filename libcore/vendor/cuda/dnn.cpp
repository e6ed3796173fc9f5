#include "libcore/vendor/cuda/dnn.h"

#include "libcore/base/error.h"

namespace galley::cuda::dnn {
namespace {

constexpr size_t kNeeded = 90800;
// Those that convolutions use are opened from the folder of the first; it looks for others there too.
constexpr const char* kFiles[] = {"libcudnn.so.9",
                                  "libcudnn_cnn.so.9",
                                  "libcudnn_heuristic.so.9",
                                  "libcudnn_engines_runtime_compiled.so.9",
                                  "libcudnn_engines_precompiled.so.9",
                                  "libcudnn_ops.so.9",
                                  "libcudnn_graph.so.9"};
constexpr LibraryRow kRow{"cuDNN", kFiles, "install version 9.8 or later (pip install nvidia-cudnn-cu13)"};

std::string version_text(size_t version) { return cat(version / 10000, ".", version % 10000 / 100, ".", version % 100); }

/// Why the library cannot be used; empty: it can.
std::string problem_of(const Functions& functions, const LibraryState& state) {
  if (functions.cudnnGetVersion() < kNeeded)
    return cat("cuDNN is of version ", state.version, ", but ", version_text(kNeeded), " is needed (", state.file, "); ", cure_of(kRow));
  const std::pair<const char*, Status> parts[] = {
      {"graph", functions.cudnnGraphVersionCheck()}, {"ops", functions.cudnnOpsVersionCheck()}, {"cnn", functions.cudnnCnnVersionCheck()}};
  for (const auto& [part, status] : parts) {
    if (status != kSuccess)
      return cat("the part libcudnn_", part, " of cuDNN is of another version than ", state.file, " (", state.version,
                 "); remove other versions from the loader's path");
  }
  return "";
}

}  // namespace

Dnn open_dnn(const std::vector<std::string>& folders) {
  Dnn opened;
  const Library library = open_library(kRow, folders);
  opened.state = library.state;
  if (library.handle == nullptr) return opened;
  FunctionTaker taker(library);
  taker.take("cudnnGetVersion", opened.functions.cudnnGetVersion);
  taker.take("cudnnGetErrorString", opened.functions.cudnnGetErrorString);
#define GALLEY_CUDA_TAKE(name, arguments) taker.take(#name, opened.functions.name);
  GALLEY_CUDA_DNN_FUNCTIONS(GALLEY_CUDA_TAKE)
#undef GALLEY_CUDA_TAKE
  if (!taker.missing().empty()) {
    opened.state.problem = cat("cuDNN has no ", taker.missing(), " (", opened.state.file, "); ", cure_of(kRow));
    return opened;
  }
  opened.state.version = version_text(opened.functions.cudnnGetVersion());
  opened.state.problem = problem_of(opened.functions, opened.state);
  return opened;
}

const Dnn& dnn() {
  static const Dnn kOpened = open_dnn(library_folders());
  return kOpened;
}

void check(Status status, const std::string& what) {
  if (status == kSuccess) return;
  const char* text = dnn().functions.cudnnGetErrorString(status);
  throw Error(ErrorCode::kResource, cat("cuDNN: ", what, ": ", text != nullptr ? text : "error", " (", status, ")"));
}

Descriptor::Descriptor(Kind kind) {
  check(dnn().functions.cudnnBackendCreateDescriptor(kind, &raw_), cat("creating a descriptor of kind ", static_cast<int>(kind)));
}
Descriptor::~Descriptor() {
  if (raw_ != nullptr) dnn().functions.cudnnBackendDestroyDescriptor(raw_);
}
void Descriptor::set(Attribute name, Type type, int64_t count, const void* values) {
  check(dnn().functions.cudnnBackendSetAttribute(raw_, name, type, count, values), cat("setting attribute ", static_cast<int>(name)));
}
Status Descriptor::finish() { return dnn().functions.cudnnBackendFinalize(raw_); }

}  // namespace galley::cuda::dnn
