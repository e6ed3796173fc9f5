#include "libcore/weights/safetensors.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "libcore/base/digest.h"

namespace galley {
namespace {

// The header begins with its own digest at a fixed position, so that it can be found without parsing the rest.
constexpr std::string_view kHeaderStart = R"({"__metadata__":{"galley.digest":")";
constexpr size_t kHeaderDigestAt = 8 + kHeaderStart.size();
constexpr std::string_view kDigestKey = "galley.digest";
constexpr std::string_view kOwnPrefix = "galley.";
constexpr int64_t kDigestBytes = 1 << 20;  // process a megabyte while it is in the cache

std::string tensor_digest_key(std::string_view name) { return cat(kDigestKey, ".", name); }

std::string json_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string file_dtype(DType dtype) {
  std::string text(dtype_name(dtype));
  for (char& letter : text) letter = static_cast<char>(letter - (letter >= 'a' && letter <= 'z' ? 'a' - 'A' : 0));
  return text;
}

/// The sizes in memory order.
Shape physical_shape(const Shape& shape, const MemoryFormat& format) {
  Shape physical;
  for (const int axis : format.order(shape.rank())) physical.push_back(shape[axis]);
  return physical;
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path), file_(MappedFile::open(path)) {
  try {
    table_ = parse_safetensors(file_->bytes());
  } catch (Error& error) {
    throw Error(error.code(), cat(path, ": ", error.message()))
        .suggest(path.ends_with(".calib") ? "run galley-calibrate again" : "fetch or save it again");
  }
  for (size_t i = 0; i < table_.entries.size(); ++i) index_[table_.entries[i].name] = i;
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &table_.entries[found->second];
}

Tensor SafetensorsFile::read_stored(const SafetensorsEntry& entry) const {
  GALLEY_CHECK_INPUT(entry.dtype.has_value(), path_, ": tensor '", entry.name, "' has the dtype ", entry.dtype_text,
                     ", which Galley does not support");
  const std::byte* data = file_->bytes().data() + entry.begin;
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(dtype_size(*entry.dtype)) == 0) {
    return Tensor(*entry.dtype, entry.shape, entry.format, Storage::borrow(data, entry.end - entry.begin, file_));
  }
  Tensor copy(*entry.dtype, entry.shape, entry.format);
  if (entry.end > entry.begin) std::copy(data, data + (entry.end - entry.begin), static_cast<std::byte*>(copy.data()));
  return copy;
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const SafetensorsEntry* entry = find(name);
  if (entry == nullptr) {
    std::vector<std::string> names;
    for (const SafetensorsEntry& other : entries()) names.push_back(other.name);
    Error error(ErrorCode::kInput, cat(path_, " has no tensor '", name, "'"));
    if (const std::string near = nearest(name, names); !near.empty()) error.suggest(cat("did you mean '", near, "'?"));
    throw error;
  }
  return read(*entry);
}

std::string_view SafetensorsFile::header() const {
  return {reinterpret_cast<const char*>(file_->bytes().data()), static_cast<size_t>(table_.data_begin)};
}

std::string SafetensorsFile::header_digest() const {
  std::string text(static_cast<size_t>(table_.data_begin), '\0');
  InputFile(path_).read(0, std::as_writable_bytes(std::span(text)));
  return digest_of(text);
}

bool SafetensorsFile::has_digests() const {
  return std::any_of(metadata().begin(), metadata().end(), [](const auto& item) { return item.first.starts_with(kOwnPrefix); });
}

void SafetensorsFile::verify() const {
  if (!has_digests()) return;
  const auto fix = path_.ends_with(".calib") ? "the file is damaged: run galley-calibrate again"
                                             : "the file is damaged: fetch or save it again, or use another copy";
  const InputFile file(path_);
  std::string text(static_cast<size_t>(table_.data_begin), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  const auto stored = metadata().find(std::string(kDigestKey));
  if (stored == metadata().end() || stored->second.size() != kDigestDigits ||
      std::string_view(text).substr(8, kHeaderStart.size()) != kHeaderStart || digest_with_hole(text, kHeaderDigestAt) != stored->second) {
    throw Error(ErrorCode::kInput, cat(path_, ": the header does not match its digest")).suggest(fix);
  }
  std::vector<std::byte> buffer(static_cast<size_t>(kDigestBytes));
  for (const SafetensorsEntry& entry : entries()) {
    const auto wanted = metadata().find(tensor_digest_key(entry.name));
    GALLEY_CHECK_INPUT(wanted != metadata().end(), path_, ": tensor '", entry.name, "' has no digest");
    Digest digest;
    for (int64_t at = entry.begin; at < entry.end; at += kDigestBytes) {
      const std::span<std::byte> part = std::span(buffer).first(static_cast<size_t>(std::min(kDigestBytes, entry.end - at)));
      file.read(at, part);
      digest.update(part);
    }
    if (digest.hex() != wanted->second) {
      throw Error(ErrorCode::kInput, cat(path_, ": tensor '", entry.name, "' does not match its digest (stored ", wanted->second,
                                         ", found ", digest.hex(), ")"))
          .suggest(fix);
    }
  }
}

TensorSource::TensorSource(std::string name, Tensor tensor)
    : name(std::move(name)), dtype(tensor.dtype()), shape(tensor.shape()), values([tensor] { return tensor; }) {}

std::string digest_of_tensors(std::span<const TensorSource> tensors) {
  std::vector<const TensorSource*> order;
  for (const TensorSource& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorSource* a, const TensorSource* b) { return a->name < b->name; });
  Digest digest;
  for (const TensorSource* source : order) {
    const Tensor tensor = source->values().to(MemoryFormat::contiguous());
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.data()), static_cast<size_t>(tensor.bytes()));
    digest.update(cat(digest_of(bytes), " ", dtype_name(tensor.dtype()), " ", tensor.shape().str(), " ", source->name, "\n"));
  }
  return digest.hex();
}

WrittenFile write_safetensors(const std::string& path, std::span<const TensorSource> tensors, const Metadata& metadata, Publish publish) {
  std::vector<const TensorSource*> order;
  for (const TensorSource& tensor : tensors) order.push_back(&tensor);
  std::stable_sort(order.begin(), order.end(),
                   [](const TensorSource* a, const TensorSource* b) { return dtype_size(a->dtype) > dtype_size(b->dtype); });
  GALLEY_ASSERT(static_cast<int64_t>(order.size()) <= kSafetensorsEntryLimit, "too many tensors for one file");

  // The header with zeros in place of digests; they are filled in after the values have been written.
  const std::string zeros(kDigestDigits, '0');
  std::string header = cat(std::string(8, '\0'), kHeaderStart, zeros, "\"");
  for (const auto& [key, value] : metadata) {
    GALLEY_ASSERT(!key.starts_with(kDigestKey) && key != kMemoryFormatKey, "metadata '" + key + "' is reserved for the writer");
    header += cat(",", json_text(key), ":", json_text(value));
  }
  if (metadata.count("galley.version") == 0) header += ",\"galley.version\":\"1\"";
  std::vector<size_t> digest_places;
  nlohmann::ordered_json formats = nlohmann::ordered_json::object();
  for (const TensorSource* tensor : order) {
    GALLEY_ASSERT(!tensor->format.is_blocked(), tensor->name);
    if (!tensor->format.is_contiguous()) formats[tensor->name] = tensor->format.str();
  }
  if (!formats.empty()) header += cat(",", json_text(std::string(kMemoryFormatKey)), ":", json_text(formats.dump()));
  for (const TensorSource* tensor : order) {
    header += cat(",", json_text(tensor_digest_key(tensor->name)), ":\"");
    digest_places.push_back(header.size());
    header += zeros + "\"";
  }
  header += "}";
  int64_t offset = 0;
  for (const TensorSource* tensor : order) {
    std::string shape;
    for (const int64_t size : physical_shape(tensor->shape, tensor->format)) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    const int64_t end = offset + tensor->shape.elements() * dtype_size(tensor->dtype);
    header += cat(",", json_text(tensor->name), ":{\"dtype\":\"", file_dtype(tensor->dtype), "\",\"shape\":[", shape,
                  "],\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  header += "}";
  header.resize((header.size() + 63) / 64 * 64, ' ');  // so that the values begin at a cache line of the mapped file
  GALLEY_ASSERT(static_cast<int64_t>(header.size()) - 8 <= kSafetensorsHeaderLimit, "the header of " + path + " is too long");
  for (size_t i = 0; i < 8; ++i) header[i] = static_cast<char>((header.size() - 8) >> (8 * i) & 0xff);

  WrittenFile written;
  OutputFile file(path, publish);
  file.write(header);
  for (size_t i = 0; i < order.size(); ++i) {
    const TensorSource& source = *order[i];
    const Tensor tensor = source.values().to(source.format);
    GALLEY_ASSERT(tensor.dtype() == source.dtype && tensor.shape() == source.shape,
                  cat("the values of '", source.name, "' are ", tensor.str()));
    const std::span<const std::byte> bytes(static_cast<const std::byte*>(tensor.data()), static_cast<size_t>(tensor.bytes()));
    Digest digest;
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(kDigestBytes)) {
      const auto part = bytes.subspan(at, std::min(static_cast<size_t>(kDigestBytes), bytes.size() - at));
      digest.update(part);
      file.write(part);
    }
    written.tensors.push_back({source.name, source.dtype, source.shape, digest.hex()});
    header.replace(digest_places[i], kDigestDigits, digest.hex());
  }
  header.replace(kHeaderDigestAt, kDigestDigits, digest_with_hole(header, kHeaderDigestAt));
  file.rewrite(0, header);
  file.finish();
  written.bytes = static_cast<int64_t>(header.size()) + offset;
  written.header_digest = digest_of(header);
  return written;
}

}  // namespace galley
