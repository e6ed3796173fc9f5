#include "libcore/onnx/write.h"

#include <protozero/pbf_writer.hpp>

#include "libcore/base/digest.h"
#include "libcore/base/error.h"

namespace galley {
namespace {

using protozero::pbf_writer;

constexpr int64_t kLargestFile = (int64_t{1} << 31) - 1;
constexpr int64_t kChunk = 1 << 20;

std::string encode(const OnnxTensor& tensor) {
  std::string bytes;
  pbf_writer writer(bytes);
  for (const int64_t size : tensor.values.shape()) writer.add_int64(1, size);
  writer.add_int32(2, onnx_type(tensor.values.dtype()));
  if (!tensor.name.empty()) writer.add_string(8, tensor.name);
  writer.add_bytes(9, static_cast<const char*>(tensor.values.data()), static_cast<size_t>(tensor.values.bytes()));
  return bytes;
}

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

std::string encode_entry(std::string_view key, std::string_view value) {
  std::string bytes;
  pbf_writer writer(bytes);
  writer.add_string(1, key.data(), key.size());
  writer.add_string(2, value.data(), value.size());
  return bytes;
}

/// A tensor's record up to its values: their length is known, so they need not be.
std::string encode_start(const OnnxSource& source) {
  std::string bytes;
  pbf_writer writer(bytes);
  for (const int64_t size : source.shape) writer.add_int64(1, size);
  writer.add_int32(2, onnx_type(source.dtype));
  writer.add_string(8, source.name);
  protozero::add_varint_to_buffer(&bytes, 9 << 3 | 2);
  protozero::add_varint_to_buffer(&bytes, static_cast<uint64_t>(source.shape.elements() * dtype_size(source.dtype)));
  return bytes;
}

/// Writes and digests the same bytes.
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
  int64_t finish() {
    std::string end;
    pbf_writer(end).add_message(14, encode_entry(kOnnxDigestKey, digest_.hex()));
    file_.write(end);
    file_.finish();
    return written_ + static_cast<int64_t>(end.size());
  }

 private:
  OutputFile file_;
  Digest digest_;
  int64_t written_ = 0;
};

}  // namespace

int64_t write_onnx(const std::string& path, const OnnxDocument& document) {
  std::string model, graph, ends;
  pbf_writer model_writer(model);
  model_writer.add_int64(1, document.ir_version);
  model_writer.add_string(2, "galley");
  if (!document.doc.empty()) model_writer.add_string(6, document.doc);
  std::string set;
  pbf_writer(set).add_int64(2, document.opset);
  model_writer.add_message(8, set);
  for (const auto& [key, value] : document.metadata) {
    GALLEY_ASSERT(key != kOnnxDigestKey);
    model_writer.add_message(14, encode_entry(key, value));
  }
  pbf_writer graph_writer(graph);
  for (const OnnxNode& node : document.nodes) graph_writer.add_message(1, encode(node));
  graph_writer.add_string(2, document.graph_name);
  pbf_writer ends_writer(ends);
  for (const OnnxValue& value : document.inputs) ends_writer.add_message(11, encode(value));
  for (const OnnxValue& value : document.outputs) ends_writer.add_message(12, encode(value));

  int64_t bytes = static_cast<int64_t>(graph.size() + ends.size());
  std::vector<std::string> starts;
  for (const OnnxSource& source : document.initializers) {
    std::string start = encode_start(source);
    const int64_t values = source.shape.elements() * dtype_size(source.dtype), record = static_cast<int64_t>(start.size()) + values;
    std::string head;
    protozero::add_varint_to_buffer(&head, 5 << 3 | 2);
    protozero::add_varint_to_buffer(&head, static_cast<uint64_t>(record));
    starts.push_back(head + start);
    bytes += static_cast<int64_t>(starts.back().size()) + values;
  }
  protozero::add_varint_to_buffer(&model, 7 << 3 | 2);
  protozero::add_varint_to_buffer(&model, static_cast<uint64_t>(bytes));
  if (static_cast<int64_t>(model.size()) + bytes > kLargestFile - 64) {
    throw Error(ErrorCode::kRecipe, cat(path, " would have ", bytes, " bytes: an ONNX file ends at 2 GiB, and Galley writes no values beside it")).suggest("export a smaller model, or quantized weights");
  }

  DigestedFile file(path);
  file.write(model);
  file.write(graph);
  for (size_t i = 0; i < starts.size(); ++i) {
    const OnnxSource& source = document.initializers[i];
    const Tensor values = source.values().to(MemoryFormat::contiguous());
    GALLEY_ASSERT(values.dtype() == source.dtype && values.shape() == source.shape, "the values of '", source.name, "' are ", values.str());
    file.write(starts[i]);
    file.write({static_cast<const std::byte*>(values.data()), static_cast<size_t>(values.bytes())});
  }
  file.write(ends);
  return file.finish();
}

}  // namespace galley
