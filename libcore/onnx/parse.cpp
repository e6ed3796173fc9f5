// parse_onnx: reads the records of an ONNX file with protozero, which decodes the wire format without allocating. Each record's reader
// accepts the fields it knows and skips others, as protocol buffers require.

#include <algorithm>
#include <array>
#include <cstring>
#include <protozero/pbf_reader.hpp>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/utf8.h"
#include "libcore/onnx/onnx.h"

namespace galley {
namespace {

using protozero::pbf_reader;
using protozero::pbf_wire_type;

/// Remaining number of items. It is limited because an item takes more memory than bytes in the file.
struct Budget {
  const char* file = nullptr;  // begin of the file in memory
  int64_t items = kOnnxItemLimit;
  int64_t decoded = 0;  // bytes of values stored as repeated numbers
  void take(int64_t count = 1) {
    items -= count;
    GALLEY_CHECK_INPUT(items >= 0, "it has more than ", kOnnxItemLimit, " nodes, tensors, attributes and sizes together");
  }
};

/// Reads the fields of a record in order; throws Error if a field is not encoded as the format requires.
class Record {
 public:
  Record(std::string_view bytes, std::string_view what, Budget& budget)
      : reader_(bytes.data(), bytes.size()), what_(what), budget_(budget) {}

  bool next() {
    at_ = reader_.data().data();
    return reader_.next();
  }
  uint32_t tag() const { return reader_.tag(); }
  void skip() {
    check_length();
    reader_.skip();
  }
  /// Offset of the current field in the file.
  int64_t offset() const { return at_ - budget_.file; }
  Budget& budget() const { return budget_; }
  bool packed() const { return reader_.wire_type() == pbf_wire_type::length_delimited; }

  std::string_view bytes() {
    expect_type(pbf_wire_type::length_delimited);
    check_length();
    const protozero::data_view view = reader_.get_view();
    return {view.data(), view.size()};
  }
  std::string text() {
    const std::string_view view = bytes();
    GALLEY_CHECK_INPUT(find_invalid_utf8(view) == std::string_view::npos, "field ", tag(), " of ", what_, " is not valid UTF-8");
    return std::string(view);
  }
  int64_t integer() {
    expect_type(pbf_wire_type::varint);
    return reader_.get_int64();
  }
  int32_t small_integer() {
    const int64_t value = integer();
    GALLEY_CHECK_INPUT(value >= INT32_MIN && value <= INT32_MAX, "field ", tag(), " of ", what_, " is ", value, ", which exceeds 32 bits");
    return static_cast<int32_t>(value);
  }
  float real() {
    expect_type(pbf_wire_type::fixed32);
    return reader_.get_float();
  }
  double long_real() {
    expect_type(pbf_wire_type::fixed64);
    return reader_.get_double();
  }
  /// Reads a repeated integer field, packed or not, and calls `take` for each value.
  template <class Take>
  void integers(const Take& take) {
    if (!packed()) return take(integer());
    check_length();
    for (const int64_t value : reader_.get_packed_int64()) take(value);
  }
  template <class Take>
  void reals(const Take& take) {
    if (!packed()) return take(real());
    check_length();
    for (const float value : reader_.get_packed_float()) take(value);
  }
  template <class Take>
  void long_reals(const Take& take) {
    if (!packed()) return take(long_real());
    check_length();
    for (const double value : reader_.get_packed_double()) take(value);
  }
  std::string_view name() const { return what_; }

 private:
  void expect_type(pbf_wire_type type) const {
    GALLEY_CHECK_INPUT(reader_.wire_type() == type, "field ", reader_.tag(), " of ", what_, " is encoded as type ",
                       static_cast<int>(reader_.wire_type()), ", but must be type ", static_cast<int>(type));
  }
  /// Checks the length of a field, because protozero truncates it to 32 bits.
  void check_length() const {
    if (!packed()) return;
    const protozero::data_view rest = reader_.data();
    const char* at = rest.data();
    const char* const end = at + rest.size();
    const uint64_t length = protozero::decode_varint(&at, end);
    GALLEY_CHECK_INPUT(length <= static_cast<uint64_t>(end - at), "field ", tag(), " of ", what_, " claims ", length, " bytes, but only ",
                       end - at, " are left: the file is damaged or truncated");
  }
  pbf_reader reader_;
  std::string_view what_;
  Budget& budget_;
  const char* at_ = nullptr;
};

/// Size in bytes of a tensor; throws Error if it exceeds 63 bits.
int64_t bytes_of(const Shape& shape, int bits, std::string_view name) {
  int64_t total = bits;
  for (const int64_t size : shape) {
    if (size == 0) return 0;
  }
  for (const int64_t size : shape)
    GALLEY_CHECK_INPUT(!__builtin_mul_overflow(total, size, &total) && total < INT64_MAX - 8, "tensor '", name, "' has the shape ", shape,
                       ", which is too large");
  return (total + 7) / 8;
}

/// Parses a StringStringEntryProto.
std::pair<std::string, std::string> parse_entry(std::string_view bytes, std::string_view what, Budget& budget) {
  std::pair<std::string, std::string> entry;
  for (Record record(bytes, what, budget); record.next();) {
    switch (record.tag()) {
      case 1: entry.first = record.text(); break;
      case 2: entry.second = record.text(); break;
      default: record.skip();
    }
  }
  return entry;
}

/// Sets the location of a tensor whose values are in another file, which must be inside the folder of this one.
void set_external(OnnxTensor& tensor, const std::vector<std::pair<std::string, std::string>>& entries, int64_t bytes) {
  int64_t offset = 0, length = bytes;
  const auto number = [&](const std::string& key, const std::string& text) {
    GALLEY_CHECK_INPUT(
        !text.empty() && text.size() <= 18 && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; }),
        "tensor '", tensor.name, "' has the external ", key, " '", text.substr(0, 40), "', which is not a number");
    return static_cast<int64_t>(std::stoll(text));
  };
  for (const auto& [key, value] : entries) {
    if (key == "location") tensor.external = value;
    if (key == "offset") offset = number(key, value);
    if (key == "length") length = number(key, value);
  }
  const std::string& path = tensor.external;
  bool inside = !path.empty() && path[0] != '/' && path.find('\\') == std::string::npos && path.find('\0') == std::string::npos;
  for (size_t begin = 0; inside && begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = std::string_view(path).substr(begin, end - begin);
    inside = !part.empty() && part != "." && part != "..";
    begin = end + 1;
  }
  if (!inside) {
    throw Error(ErrorCode::kInput,
                cat("tensor '", tensor.name, "' refers to the file '", path.substr(0, 200), "', which is not inside this file's folder"))
        .suggest("put both files into one folder and refer to the other by its name only (onnx.save_model with location=)");
  }
  GALLEY_CHECK_INPUT(length == bytes, "tensor '", tensor.name, "' of type ", tensor.dtype_text, " ", tensor.shape, " needs ", bytes,
                     " bytes, but its external length is ", length);
  tensor.begin = offset;
  tensor.end = offset + length;
}

/// Collects values that are stored as repeated numbers, in memory format.
class DecodedValues {
 public:
  explicit DecodedValues(Budget& budget) : budget_(budget) {}
  template <class T>
  void add(T value) {
    const char* bytes = reinterpret_cast<const char*>(&value);
    budget_.decoded += static_cast<int64_t>(sizeof(T));
    bytes_.append(bytes, sizeof(T));
  }
  bool empty() const { return bytes_.empty(); }
  const std::string& bytes() const { return bytes_; }

 private:
  Budget& budget_;
  std::string bytes_;
};

/// A tensor record without its repeated numbers.
struct TensorHeader {
  OnnxTensor tensor;
  std::optional<std::string_view> raw;                        // raw_data
  std::vector<std::pair<std::string, std::string>> external;  // location of external values
  bool is_external = false;
};

TensorHeader parse_tensor_header(std::string_view bytes, Budget& budget) {
  TensorHeader header;
  OnnxTensor& tensor = header.tensor;
  bool has_type = false;
  for (Record record(bytes, "a tensor", budget); record.next();) {
    switch (record.tag()) {
      case 1:
        record.integers([&](int64_t size) {
          GALLEY_CHECK_INPUT(size >= 0, "a tensor has a negative size ", size);
          GALLEY_CHECK_INPUT(tensor.shape.rank() < Shape::kMaxRank, "a tensor has more than ", Shape::kMaxRank, " dimensions");
          tensor.shape.push_back(size);
        });
        break;
      case 2:
        tensor.data_type = record.small_integer();
        has_type = true;
        break;
      case 3: fail(ErrorCode::kInput, "a tensor is stored in segments, which the ONNX format no longer supports");
      case 8: tensor.name = record.text(); break;
      case 9:
        GALLEY_CHECK_INPUT(!header.raw, "tensor '", tensor.name, "' has values twice");
        header.raw = record.bytes();
        break;
      case 13:
        budget.take();
        header.external.push_back(parse_entry(record.bytes(), "an external location", budget));
        break;
      case 14: header.is_external = record.integer() == 1; break;
      default: record.skip();
    }
  }
  GALLEY_CHECK_INPUT(has_type && find_onnx_type(tensor.data_type) != nullptr, "tensor '", tensor.name, "' has the unknown type ",
                     tensor.data_type);
  return header;
}

/// Appends a value of int32_data, which stores all types of at most 32 bits.
void add_int32(const OnnxTensor& tensor, DecodedValues& decoded_values, int64_t value) {
  switch (*tensor.dtype) {
    case DType::kI32: decoded_values.add(static_cast<int32_t>(value)); break;
    case DType::kI16:
    case DType::kF16:
    case DType::kBF16: decoded_values.add(static_cast<uint16_t>(value)); break;
    case DType::kI8:
    case DType::kU8: decoded_values.add(static_cast<uint8_t>(value)); break;
    case DType::kBool: decoded_values.add(static_cast<uint8_t>(value != 0)); break;
    default: fail(ErrorCode::kInput, "tensor '", tensor.name, "' of type ", tensor.dtype_text, " has int32_data");
  }
}

void check_value_bytes(const OnnxTensor& tensor, size_t found, int64_t wanted) {
  GALLEY_CHECK_INPUT(static_cast<int64_t>(found) == wanted, "tensor '", tensor.name, "' of type ", tensor.dtype_text, " ", tensor.shape,
                     " needs ", wanted, " bytes of values, but has ", found);
}

/// Reads values stored as repeated numbers in a typed field.
void read_numbers(OnnxTensor& tensor, std::string_view bytes, int64_t wanted, Budget& budget) {
  DecodedValues decoded_values(budget);
  const auto check_type = [&](DType dtype, std::string_view list) {
    GALLEY_CHECK_INPUT(tensor.dtype == dtype, "tensor '", tensor.name, "' of type ", tensor.dtype_text, " has ", list);
  };
  for (Record record(bytes, "a tensor", budget); record.next();) {
    switch (record.tag()) {
      case 4:
        check_type(DType::kF32, "float_data");
        record.reals([&](float value) { decoded_values.add(value); });
        break;
      case 5: record.integers([&](int64_t value) { add_int32(tensor, decoded_values, value); }); break;
      case 7:
        check_type(DType::kI64, "int64_data");
        record.integers([&](int64_t value) { decoded_values.add(value); });
        break;
      case 10:
        check_type(DType::kF64, "double_data");
        record.long_reals([&](double value) { decoded_values.add(value); });
        break;
      default: record.skip();
    }
  }
  check_value_bytes(tensor, decoded_values.bytes().size(), wanted);
  tensor.values = Tensor(*tensor.dtype, tensor.shape);
  if (wanted > 0) std::memcpy(tensor.values.data(), decoded_values.bytes().data(), static_cast<size_t>(wanted));
}

/// Parses in two passes, because the type determines how the numbers are read and may follow them.
OnnxTensor parse_tensor(std::string_view bytes, Budget& budget) {
  budget.take();
  TensorHeader header = parse_tensor_header(bytes, budget);
  OnnxTensor& tensor = header.tensor;
  const OnnxType& type = *find_onnx_type(tensor.data_type);
  tensor.dtype_text = type.text;
  tensor.dtype = type.dtype;
  if (type.bits == 0) return tensor;  // strings, which no operator supports
  const int64_t wanted = bytes_of(tensor.shape, type.bits, tensor.name);
  if (header.is_external) {
    GALLEY_CHECK_INPUT(!header.raw, "tensor '", tensor.name, "' has values both inside and outside of the file");
    set_external(tensor, header.external, wanted);
  } else if (header.raw) {
    check_value_bytes(tensor, header.raw->size(), wanted);
    tensor.begin = header.raw->data() - budget.file;
    tensor.end = tensor.begin + wanted;
  } else if (tensor.dtype) {
    read_numbers(tensor, bytes, wanted, budget);
  }
  return tensor;
}

OnnxAttribute parse_attribute(std::string_view bytes, Budget& budget) {
  budget.take();
  OnnxAttribute attribute;
  const auto kind = [&](OnnxAttributeKind found) {
    GALLEY_CHECK_INPUT(attribute.kind == OnnxAttributeKind::kNone || attribute.kind == found, "attribute '", attribute.name,
                       "' has values of two types");
    attribute.kind = found;
  };
  int64_t type = 0;
  for (Record record(bytes, "an attribute", budget); record.next();) {
    switch (record.tag()) {
      case 1: attribute.name = record.text(); break;
      case 2:
        kind(OnnxAttributeKind::kFloat);
        attribute.f = static_cast<double>(record.real());
        break;
      case 3:
        kind(OnnxAttributeKind::kInt);
        attribute.i = record.integer();
        break;
      case 4:
        kind(OnnxAttributeKind::kString);
        attribute.s = std::string(record.bytes());
        break;
      case 5:
        kind(OnnxAttributeKind::kTensor);
        attribute.tensor = parse_tensor(record.bytes(), budget);
        break;
      case 6:
      case 11:
        kind(OnnxAttributeKind::kGraph);  // subgraphs are not read
        record.skip();
        break;
      case 7:
        kind(OnnxAttributeKind::kFloats);
        record.reals([&](float value) {
          budget.take();
          attribute.floats.push_back(static_cast<double>(value));
        });
        break;
      case 8:
        kind(OnnxAttributeKind::kInts);
        record.integers([&](int64_t value) {
          budget.take();
          attribute.ints.push_back(value);
        });
        break;
      case 9:
        kind(OnnxAttributeKind::kStrings);
        budget.take();
        attribute.strings.emplace_back(record.bytes());
        break;
      case 10:
      case 14:
      case 15:
      case 21:
      case 22:
      case 23:
        kind(OnnxAttributeKind::kOther);
        record.skip();
        break;
      case 20: type = record.integer(); break;
      default: record.skip();
    }
  }
  // Absent values are zero or empty; then only the type field tells the kind.
  if (attribute.kind == OnnxAttributeKind::kNone) {
    constexpr std::array<OnnxAttributeKind, 9> kKinds{OnnxAttributeKind::kOther,  OnnxAttributeKind::kFloat, OnnxAttributeKind::kInt,
                                                      OnnxAttributeKind::kString, OnnxAttributeKind::kOther, OnnxAttributeKind::kOther,
                                                      OnnxAttributeKind::kFloats, OnnxAttributeKind::kInts,  OnnxAttributeKind::kStrings};
    attribute.kind = type > 0 && type < static_cast<int64_t>(kKinds.size()) ? kKinds[static_cast<size_t>(type)] : OnnxAttributeKind::kOther;
  }
  return attribute;
}

OnnxNode parse_node(std::string_view bytes, Budget& budget) {
  budget.take();
  OnnxNode node;
  for (Record record(bytes, "a node", budget); record.next();) {
    switch (record.tag()) {
      case 1:
        budget.take();
        node.inputs.push_back(record.text());
        break;
      case 2:
        budget.take();
        node.outputs.push_back(record.text());
        break;
      case 3: node.name = record.text(); break;
      case 4: node.op_type = record.text(); break;
      case 5: node.attributes.push_back(parse_attribute(record.bytes(), budget)); break;
      case 7: node.domain = record.text(); break;
      default: record.skip();
    }
  }
  if (node.domain == "ai.onnx") node.domain.clear();
  GALLEY_CHECK_INPUT(!node.op_type.empty(), "node '", node.name, "' has no op_type");
  return node;
}

void parse_shape(std::string_view bytes, OnnxValue& value, Budget& budget) {
  value.has_shape = true;
  for (Record record(bytes, "a shape", budget); record.next();) {
    if (record.tag() != 1) {
      record.skip();
      continue;
    }
    budget.take();
    OnnxDimension dimension;
    for (Record size(record.bytes(), "a dimension", budget); size.next();) {
      switch (size.tag()) {
        case 1: dimension.size = size.integer(); break;
        case 2: dimension.name = size.text(); break;
        default: size.skip();
      }
    }
    GALLEY_CHECK_INPUT(!dimension.size || *dimension.size >= 0, "'", value.name, "' has a negative size ", *dimension.size);
    value.shape.push_back(std::move(dimension));
  }
}

OnnxValue parse_value(std::string_view bytes, Budget& budget) {
  budget.take();
  OnnxValue value;
  for (Record record(bytes, "an input or output", budget); record.next();) {
    if (record.tag() == 1) {
      value.name = record.text();
    } else if (record.tag() == 2) {
      for (Record type(record.bytes(), "a type", budget); type.next();) {
        if (type.tag() != 1) {
          type.skip();
          continue;
        }
        for (Record tensor(type.bytes(), "a type of tensors", budget); tensor.next();) {
          switch (tensor.tag()) {
            case 1: value.data_type = tensor.small_integer(); break;
            case 2: parse_shape(tensor.bytes(), value, budget); break;
            default: tensor.skip();
          }
        }
      }
    } else {
      record.skip();
    }
  }
  return value;
}

void parse_graph(std::string_view bytes, OnnxModel& model, Budget& budget) {
  std::set<std::string, std::less<>> names;
  for (Record record(bytes, "the graph", budget); record.next();) {
    switch (record.tag()) {
      case 1: model.nodes.push_back(parse_node(record.bytes(), budget)); break;
      case 2: model.graph_name = record.text(); break;
      case 5: {
        OnnxTensor tensor = parse_tensor(record.bytes(), budget);
        GALLEY_CHECK_INPUT(names.insert(tensor.name).second, "there are two initializers '", tensor.name, "'");
        model.initializers.push_back(std::move(tensor));
        break;
      }
      case 11: model.inputs.push_back(parse_value(record.bytes(), budget)); break;
      case 12: model.outputs.push_back(parse_value(record.bytes(), budget)); break;
      case 15: fail(ErrorCode::kInput, "it has sparse initializers, which Galley does not support");
      default: record.skip();
    }
  }
}

OnnxModel parse_model(std::string_view bytes, Budget& budget) {
  OnnxModel model;
  bool has_graph = false;
  std::string producer, version;
  for (Record record(bytes, "the model", budget); record.next();) {
    switch (record.tag()) {
      case 1: model.ir_version = record.integer(); break;
      case 2: producer = record.text(); break;
      case 3: version = record.text(); break;
      case 7:
        GALLEY_CHECK_INPUT(!has_graph, "it has two graphs");
        has_graph = true;
        parse_graph(record.bytes(), model, budget);
        break;
      case 8: {
        budget.take();
        std::string domain;
        int64_t number = 0;
        for (Record set(record.bytes(), "an operator set", budget); set.next();) {
          switch (set.tag()) {
            case 1: domain = set.text(); break;
            case 2: number = set.integer(); break;
            default: set.skip();
          }
        }
        model.opsets[domain == "ai.onnx" ? "" : domain] = number;
        break;
      }
      case 14: {
        budget.take();
        const int64_t at = record.offset();
        auto [key, value] = parse_entry(record.bytes(), "the metadata", budget);
        if (key == kOnnxDigestKey) model.digest_at = at;
        model.metadata[std::move(key)] = std::move(value);
        break;
      }
      case 25:
        ++model.functions;
        record.skip();
        break;
      default: record.skip();
    }
  }
  GALLEY_CHECK_INPUT(has_graph, "it has no graph");
  GALLEY_CHECK_INPUT(model.ir_version >= 1, "it has no format version (ir_version)");
  model.producer = producer + (version.empty() ? "" : " " + version);
  return model;
}

}  // namespace

OnnxModel parse_onnx(std::span<const std::byte> file) {
  const auto* bytes = reinterpret_cast<const char*>(file.data());
  Budget budget{bytes};
  try {
    return parse_model({bytes, file.size()}, budget);
  } catch (const protozero::exception& error) {
    fail(ErrorCode::kInput, "it is not an ONNX model or is damaged (", error.what(), ")");
  }
}

bool is_onnx(std::span<const std::byte> start) {
  if (start.size() < 2) return false;
  // ir_version, producer's name and version, domain, model_version, doc_string, graph, operator sets, metadata.
  constexpr std::array<unsigned, 9> kTags{0x08, 0x12, 0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42, 0x72};
  if (std::find(kTags.begin(), kTags.end(), std::to_integer<unsigned>(start[0])) == kTags.end()) return false;
  // A safetensors file begins with the header's length, a number below 2^32, and an opening brace.
  if (start.size() < 9) return true;
  uint64_t length = 0;
  std::memcpy(&length, start.data(), 8);
  return length >= (uint64_t{1} << 32);
}

}  // namespace galley
