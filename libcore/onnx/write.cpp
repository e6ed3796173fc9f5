#include "libcore/onnx/write.h"

#include <protozero/pbf_writer.hpp>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"

namespace galley {
namespace {

using protozero::pbf_writer;

constexpr int64_t kChunk = 1 << 20;
constexpr int64_t kSmallValues = 1 << 10;  // values up to this many bytes always stay in the model
constexpr int64_t kDataAlignment = 4096;   // alignment of external values, so that they can be mapped
constexpr std::string_view kDataSuffix = ".data-";
constexpr size_t kDataDigits = 16;

std::string encode(const OnnxTensor& tensor) {
  std::string bytes;
  pbf_writer writer(bytes);
  for (const int64_t size : tensor.values.shape()) writer.add_int64(1, size);
  writer.add_int32(2, onnx_type(tensor.values.dtype()));
  if (!tensor.name.empty()) writer.add_string(8, tensor.name);
  writer.add_bytes(9, static_cast<const char*>(tensor.values.data()), static_cast<size_t>(tensor.values.bytes()));
  return bytes;
}

std::string encode(const OnnxGraph& graph);

std::string encode(const OnnxAttribute& attribute) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_string(1, attribute.name);
  switch (attribute.kind) {
    case OnnxAttributeKind::kFloat:
      writer.add_float(2, static_cast<float>(attribute.f));
      writer.add_enum(20, 1);
      break;
    case OnnxAttributeKind::kInt:
      writer.add_int64(3, attribute.i);
      writer.add_enum(20, 2);
      break;
    case OnnxAttributeKind::kString:
      writer.add_bytes(4, attribute.s);
      writer.add_enum(20, 3);
      break;
    case OnnxAttributeKind::kTensor:
      writer.add_message(5, encode(*attribute.tensor));
      writer.add_enum(20, 4);
      break;
    case OnnxAttributeKind::kFloats:
      for (const double value : attribute.floats) writer.add_float(7, static_cast<float>(value));
      writer.add_enum(20, 6);
      break;
    case OnnxAttributeKind::kInts:
      for (const int64_t value : attribute.ints) writer.add_int64(8, value);
      writer.add_enum(20, 7);
      break;
    case OnnxAttributeKind::kStrings:
      for (const std::string& value : attribute.strings) writer.add_bytes(9, value);
      writer.add_enum(20, 8);
      break;
    case OnnxAttributeKind::kGraph:
      writer.add_message(6, encode(*attribute.graph));
      writer.add_enum(20, 5);
      break;
    default: GALLEY_ASSERT(false, "attribute ", attribute.name);
  }
  return bytes;
}

std::string encode(const OnnxNode& node) {
  std::string bytes;
  pbf_writer writer(bytes);
  for (const std::string& input : node.inputs) writer.add_string(1, input);
  for (const std::string& output : node.outputs) writer.add_string(2, output);
  writer.add_string(3, node.name);
  writer.add_string(4, node.op_type);
  for (const OnnxAttribute& attribute : node.attributes) writer.add_message(5, encode(attribute));
  if (!node.domain.empty()) writer.add_string(7, node.domain);
  return bytes;
}

std::string encode(const OnnxValue& value) {
  std::string shape, tensor, type, bytes;
  for (const OnnxDimension& dimension : value.shape) {
    std::string size;
    pbf_writer writer(size);
    if (dimension.size) {
      writer.add_int64(1, *dimension.size);
    } else {
      writer.add_string(2, dimension.name);
    }
    pbf_writer(shape).add_message(1, size);
  }
  pbf_writer tensor_writer(tensor);
  tensor_writer.add_int32(1, value.data_type);
  tensor_writer.add_message(2, shape);
  pbf_writer(type).add_message(1, tensor);
  pbf_writer writer(bytes);
  writer.add_string(1, value.name);
  writer.add_message(2, type);
  return bytes;
}

std::string encode(const OnnxGraph& graph) {
  std::string bytes;
  pbf_writer writer(bytes);
  for (const OnnxNode& node : graph.nodes) writer.add_message(1, encode(node));
  writer.add_string(2, graph.name);
  for (const OnnxValue& value : graph.inputs) writer.add_message(11, encode(value));
  for (const OnnxValue& value : graph.outputs) writer.add_message(12, encode(value));
  return bytes;
}

std::string encode_entry(std::string_view key, std::string_view value) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_string(1, key.data(), key.size());
  writer.add_string(2, value.data(), value.size());
  return bytes;
}

/// A tensor record up to its values.
std::string encode_type(const OnnxSource& source) {
  std::string bytes;
  pbf_writer writer(bytes);
  for (const int64_t size : source.shape) writer.add_int64(1, size);
  writer.add_int32(2, onnx_type(source.dtype));
  writer.add_string(8, source.name);
  return bytes;
}

int64_t bytes_of(const OnnxSource& source) { return source.shape.elements() * dtype_size(source.dtype); }

/// The record up to the values; needs only their length.
std::string encode_start(const OnnxSource& source) {
  std::string bytes = encode_type(source);
  protozero::add_varint_to_buffer(&bytes, 9 << 3 | 2);
  protozero::add_varint_to_buffer(&bytes, static_cast<uint64_t>(bytes_of(source)));
  return bytes;
}

/// The record of a tensor whose values are at `offset` of another file.
std::string encode_external(const OnnxSource& source, const std::string& file, int64_t offset) {
  std::string bytes = encode_type(source);
  pbf_writer writer(bytes);
  writer.add_message(13, encode_entry("location", file));
  writer.add_message(13, encode_entry("offset", std::to_string(offset)));
  writer.add_message(13, encode_entry("length", std::to_string(bytes_of(source))));
  writer.add_enum(14, 1);
  return bytes;
}

/// The tag and length of a field of `size` bytes.
std::string head_of(int field, int64_t size) {
  std::string head;
  protozero::add_varint_to_buffer(&head, static_cast<uint64_t>(field) << 3 | 2);
  protozero::add_varint_to_buffer(&head, static_cast<uint64_t>(size));
  return head;
}

/// Writes a file and computes the digest of what it writes.
class DigestedFile {
 public:
  explicit DigestedFile(const std::string& path) : file_(path) {}
  void write(std::span<const std::byte> bytes) {
    for (size_t at = 0; at < bytes.size(); at += static_cast<size_t>(kChunk)) {
      const auto part = bytes.subspan(at, std::min(static_cast<size_t>(kChunk), bytes.size() - at));
      digest_.update(part);
      file_.write(part);
    }
    written_ += static_cast<int64_t>(bytes.size());
  }
  void write(std::string_view text) { write(std::as_bytes(std::span(text))); }
  void write(const Tensor& values) { write({static_cast<const std::byte*>(values.data()), static_cast<size_t>(values.bytes())}); }
  void align(int64_t to) { write(std::string(static_cast<size_t>((to - written_ % to) % to), '\0')); }
  int64_t written() const { return written_; }
  std::string digest() const { return digest_.hex(); }
  OutputFile& file() { return file_; }

 private:
  OutputFile file_;
  Digest digest_;
  int64_t written_ = 0;
};

Tensor values_of(const OnnxSource& source) {
  Tensor values = source.values().to(MemoryFormat::contiguous());
  GALLEY_ASSERT(values.dtype() == source.dtype && values.shape() == source.shape, "the values of '", source.name, "' are ", values.str());
  return values;
}

/// The file with the large values.
struct DataFile {
  std::string name, digest;      // "": no such file
  std::vector<int64_t> offsets;  // of each initializer; -1: in the model
  int64_t bytes = 0;
};

DataFile write_data(const std::string& path, const OnnxDocument& document) {
  DataFile data;
  DigestedFile file(path + std::string(kDataSuffix));
  for (const OnnxSource& source : document.initializers) {
    data.offsets.push_back(-1);
    if (bytes_of(source) <= kSmallValues) continue;
    file.align(kDataAlignment);
    data.offsets.back() = file.written();
    file.write(values_of(source));
  }
  data.digest = file.digest();
  data.bytes = file.written();
  const std::string whole = cat(path, kDataSuffix, data.digest.substr(0, kDataDigits));
  data.name = whole.substr(whole.rfind('/') + 1);
  file.file().set_path(whole);
  file.file().finish();
  return data;
}

/// Removes data files of earlier models of this name.
void remove_old_data(const std::string& path, const std::string& kept) {
  const std::string start = path.substr(path.rfind('/') + 1) + std::string(kDataSuffix);
  for (const FolderEntry& entry : list_folder(parent_folder(path))) {
    const bool ours = !entry.is_folder && entry.name.starts_with(start) && entry.name.size() == start.size() + kDataDigits &&
                      entry.name.find_first_not_of("0123456789abcdef", start.size()) == std::string::npos;
    if (ours && entry.name != kept) remove_tree(parent_folder(path) + "/" + entry.name);
  }
}

}  // namespace

OnnxWritten write_onnx(const std::string& path, const OnnxDocument& document, int64_t largest) {
  std::string graph, ends;
  pbf_writer graph_writer(graph);
  for (const OnnxNode& node : document.nodes) graph_writer.add_message(1, encode(node));
  graph_writer.add_string(2, document.graph_name);
  pbf_writer ends_writer(ends);
  for (const OnnxValue& value : document.inputs) ends_writer.add_message(11, encode(value));
  for (const OnnxValue& value : document.outputs) ends_writer.add_message(12, encode(value));
  int64_t metadata_bytes = 0;
  for (const auto& [key, value] : document.metadata) metadata_bytes += static_cast<int64_t>(key.size() + value.size()) + 16;

  std::vector<std::string> starts;
  int64_t inside = 0;  // bytes of initializers with all values in the model
  for (const OnnxSource& source : document.initializers) {
    const std::string start = encode_start(source);
    starts.push_back(head_of(5, static_cast<int64_t>(start.size()) + bytes_of(source)) + start);
    inside += static_cast<int64_t>(starts.back().size()) + bytes_of(source);
  }
  constexpr int64_t kRest = 4096;  // the model's own fields and digests
  DataFile data;
  data.offsets.assign(starts.size(), -1);
  if (static_cast<int64_t>(graph.size() + ends.size()) + inside + metadata_bytes + kRest > largest) {
    data = write_data(path, document);
    inside = 0;
    for (size_t i = 0; i < starts.size(); ++i) {
      const OnnxSource& source = document.initializers[i];
      if (data.offsets[i] >= 0) {
        const std::string record = encode_external(source, data.name, data.offsets[i]);
        starts[i] = head_of(5, static_cast<int64_t>(record.size())) + record;
      }
      inside += static_cast<int64_t>(starts[i].size()) + (data.offsets[i] >= 0 ? 0 : bytes_of(source));
    }
  }

  std::string model;
  pbf_writer model_writer(model);
  model_writer.add_int64(1, document.ir_version);
  model_writer.add_string(2, "galley");
  if (!document.doc.empty()) model_writer.add_string(6, document.doc);
  std::string set;
  pbf_writer(set).add_int64(2, document.opset);
  model_writer.add_message(8, set);
  for (const auto& [key, value] : document.metadata) {
    GALLEY_ASSERT(key != kOnnxDigestKey && key != kOnnxDataDigestKey);
    model_writer.add_message(14, encode_entry(key, value));
  }
  if (!data.name.empty()) model_writer.add_message(14, encode_entry(kOnnxDataDigestKey, data.digest));
  model += head_of(7, static_cast<int64_t>(graph.size() + ends.size()) + inside);

  DigestedFile file(path);
  file.write(model);
  file.write(graph);
  for (size_t i = 0; i < starts.size(); ++i) {
    file.write(starts[i]);
    if (data.offsets[i] < 0) file.write(values_of(document.initializers[i]));
  }
  file.write(ends);
  std::string end;
  pbf_writer(end).add_message(14, encode_entry(kOnnxDigestKey, file.digest()));
  file.file().write(end);
  file.file().finish();
  remove_old_data(path, data.name);
  return {file.written() + static_cast<int64_t>(end.size()) + data.bytes, data.name};
}

}  // namespace galley
