// OnnxFile: tensor values of a mapped file.

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"
#include "libcore/onnx/onnx.h"

namespace galley {
namespace {

/// Opens the external data file of a tensor. The name has been checked already; this detects links that lead out of the folder.
std::shared_ptr<const MappedFile> open_external(const std::string& owner, const std::string& name) {
  const std::string folder = parent_folder(owner), path = folder + "/" + name;
  std::error_code failed;
  const std::filesystem::path root = std::filesystem::canonical(folder, failed), real = std::filesystem::canonical(path, failed);
  if (failed)
    throw Error(ErrorCode::kInput, cat(owner, " refers to values in ", path, ", which does not exist"))
        .suggest("copy it to the folder of the ONNX file");
  const auto [end, ignored] = std::mismatch(root.begin(), root.end(), real.begin(), real.end());
  GALLEY_CHECK_INPUT(end == root.end(), owner, " refers to values in ", path, ", a link that leads out of its folder");
  return MappedFile::open(path);
}

}  // namespace

OnnxFile::OnnxFile(const std::string& path) : path_(path), file_(MappedFile::open(path)) {
  try {
    model_ = parse_onnx(file_->bytes());
  } catch (Error& error) {
    const std::string fix = error.suggestion();
    throw Error(error.code(), cat(path, ": ", error.message())).suggest(fix.empty() ? "export or save it again" : fix);
  }
}

Tensor OnnxFile::read(const OnnxTensor& tensor) const {
  GALLEY_CHECK_INPUT(tensor.dtype.has_value(), path_, ": tensor '", tensor.name, "' has the type ", tensor.dtype_text,
                     ", which Galley does not support");
  if (tensor.values.defined()) return tensor.values;
  const std::shared_ptr<const MappedFile> file = tensor.external.empty() ? file_ : open_external(path_, tensor.external);
  GALLEY_CHECK_INPUT(tensor.end <= static_cast<int64_t>(file->bytes().size()), file->path(), ": tensor '", tensor.name, "' needs bytes ",
                     tensor.begin, " to ", tensor.end, ", but the file has only ", file->bytes().size());
  const std::byte* data = file->bytes().data() + tensor.begin;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_size(*tensor.dtype)) == 0) {
    return Tensor(*tensor.dtype, tensor.shape, {}, Storage::borrow(data, tensor.end - tensor.begin, file));
  }
  Tensor copy(*tensor.dtype, tensor.shape);
  if (tensor.end > tensor.begin) std::memcpy(copy.data(), data, static_cast<size_t>(tensor.end - tensor.begin));
  return copy;
}

bool OnnxFile::has_digest() const {
  return std::any_of(model_.metadata.begin(), model_.metadata.end(), [](const auto& entry) { return entry.first.starts_with("galley."); });
}

void OnnxFile::verify() const {
  if (!has_digest()) return;
  const auto digest_of = [](const InputFile& file, int64_t bytes) {
    Digest digest;
    std::vector<std::byte> buffer(size_t{1} << 20);
    for (int64_t at = 0; at < bytes;) {
      const auto part = std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(buffer.size()), bytes - at)));
      file.read(at, part);
      digest.update(part);
      at += static_cast<int64_t>(part.size());
    }
    return digest.hex();
  };
  const auto damaged = [](const std::string& path) {
    throw Error(ErrorCode::kInput, cat(path, ": the contents do not match their digest"))
        .suggest("the file is damaged: export it again or use another copy");
  };
  const InputFile file(path_);
  const auto stored = model_.metadata.find(std::string(kOnnxDigestKey));
  // The digest record is the end of the file: a tag, a length, and the key and the value with theirs.
  const int64_t rest = model_.digest_at < 0 ? 0 : file.size() - model_.digest_at;
  if (stored == model_.metadata.end() || rest != static_cast<int64_t>(6 + kOnnxDigestKey.size() + kDigestDigits) ||
      stored->second != digest_of(file, model_.digest_at))
    damaged(path_);
  const auto data_digest = model_.metadata.find(std::string(kOnnxDataDigestKey));
  if (data_digest == model_.metadata.end()) return;
  for (const OnnxTensor& tensor : model_.initializers) {
    if (tensor.external.empty()) continue;
    const InputFile data(open_external(path_, tensor.external)->path());
    if (data_digest->second != digest_of(data, data.size())) damaged(data.path());
    return;  // all tensors are in one file
  }
}

}  // namespace galley
