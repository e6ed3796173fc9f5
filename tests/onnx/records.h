#pragma once
// Builds valid and hostile ONNX files byte by byte.

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace galley::onnx_records {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
inline std::string number(int field, int64_t value) {
  return varint(static_cast<uint64_t>(field) << 3) + varint(static_cast<uint64_t>(value));
}
inline std::string bytes(int field, std::string_view value) {
  return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(value.size()) + std::string(value);
}

/// TensorProto: dims, data_type, name, raw_data.
inline std::string tensor(std::string_view name, const std::string& dims, int type, std::string_view raw) {
  return dims + number(2, type) + bytes(8, name) + bytes(9, raw);
}
inline std::string initializer(const std::string& tensor) { return bytes(5, tensor); }
/// NodeProto.
inline std::string node(std::string_view op, const std::string& inputs, const std::string& outputs, const std::string& rest = "") {
  return bytes(1, inputs + outputs + bytes(4, op) + rest);
}
inline std::string in(std::string_view name) { return bytes(1, name); }
inline std::string out(std::string_view name) { return bytes(2, name); }
/// Attributes of a node.
inline std::string integer(std::string_view name, int64_t value) { return bytes(5, bytes(1, name) + number(3, value) + number(20, 2)); }
inline std::string integer_list(std::string_view name, std::initializer_list<int64_t> values) {
  std::string list;
  for (const int64_t value : values) list += number(8, value);
  return bytes(5, bytes(1, name) + list + number(20, 7));
}
inline std::string float_bytes(float value) { return std::string(reinterpret_cast<const char*>(&value), 4); }
inline std::string real(std::string_view name, float value) {
  return bytes(5, bytes(1, name) + varint(2 << 3 | 5) + float_bytes(value) + number(20, 1));
}
inline std::string real_list(std::string_view name, std::initializer_list<float> values) {
  std::string list;
  for (const float value : values) list += varint(7 << 3 | 5) + float_bytes(value);
  return bytes(5, bytes(1, name) + list + number(20, 6));
}
inline std::string text(std::string_view name, std::string_view value) {
  return bytes(5, bytes(1, name) + bytes(4, value) + number(20, 3));
}
/// Constants of i64 and of floats.
inline std::string integers(std::string_view name, std::initializer_list<int64_t> values) {
  std::string raw;
  for (const int64_t value : values) raw += std::string(reinterpret_cast<const char*>(&value), 8);
  return initializer(tensor(name, number(1, static_cast<int64_t>(values.size())), 7, raw));
}
inline std::string reals(std::string_view name, std::initializer_list<float> values, bool scalar = false) {
  std::string raw;
  for (const float value : values) raw += float_bytes(value);
  return initializer(tensor(name, scalar ? std::string() : number(1, static_cast<int64_t>(values.size())), 1, raw));
}

/// ValueInfoProto with fixed sizes and a type of TensorProto.
inline std::string fixed(std::string_view name, std::initializer_list<int64_t> sizes, int type = 1) {
  std::string dims;
  for (const int64_t value : sizes) dims += bytes(1, number(1, value));
  return bytes(1, name) + bytes(2, bytes(1, number(1, type) + bytes(2, dims)));
}
/// ValueInfoProto of floats [N, sizes...].
inline std::string value(std::string_view name, const std::string& sizes) {
  return bytes(1, name) + bytes(2, bytes(1, number(1, 1) + bytes(2, bytes(1, bytes(2, "N")) + sizes)));
}
inline std::string size(int64_t value) { return bytes(1, number(1, value)); }
inline std::string input(const std::string& value) { return bytes(11, value); }
inline std::string output(const std::string& value) { return bytes(12, value); }
inline std::string model(const std::string& graph, int64_t opset = 17) {
  return number(1, 8) + bytes(7, graph) + bytes(8, number(2, opset));
}

/// x [N,3] -> relu(x w), w [3,2].
inline std::string weight() { return initializer(tensor("w", number(1, 3) + number(1, 2), 1, std::string(24, '\0'))); }
inline std::string ends() { return input(value("x", size(3))) + output(value("y", size(2))); }
inline std::string small_graph() {
  return node("MatMul", in("x") + in("w"), out("h")) + node("Relu", in("h"), out("y")) + weight() + ends();
}

}  // namespace galley::onnx_records
