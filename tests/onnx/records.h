#pragma once
// ONNX files byte by byte, true ones and hostile ones.

#include <cstdint>
#include <string>
#include <string_view>

namespace galley::onnx_records {

inline std::string varint(uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}
inline std::string number(int field, int64_t value) { return varint(static_cast<uint64_t>(field) << 3) + varint(static_cast<uint64_t>(value)); }
inline std::string bytes(int field, std::string_view value) { return varint(static_cast<uint64_t>(field) << 3 | 2) + varint(value.size()) + std::string(value); }

/// TensorProto: dims, data_type, name, raw_data.
inline std::string tensor(std::string_view name, const std::string& dims, int type, std::string_view raw) { return dims + number(2, type) + bytes(8, name) + bytes(9, raw); }
inline std::string initializer(const std::string& tensor) { return bytes(5, tensor); }
/// NodeProto.
inline std::string node(std::string_view op, const std::string& inputs, const std::string& outputs, const std::string& rest = "") {
  return bytes(1, inputs + outputs + bytes(4, op) + rest);
}
inline std::string in(std::string_view name) { return bytes(1, name); }
inline std::string out(std::string_view name) { return bytes(2, name); }
/// ValueInfoProto of floats [N, sizes...].
inline std::string value(std::string_view name, const std::string& sizes) { return bytes(1, name) + bytes(2, bytes(1, number(1, 1) + bytes(2, bytes(1, bytes(2, "N")) + sizes))); }
inline std::string size(int64_t value) { return bytes(1, number(1, value)); }
inline std::string input(const std::string& value) { return bytes(11, value); }
inline std::string output(const std::string& value) { return bytes(12, value); }
inline std::string model(const std::string& graph, int64_t opset = 17) { return number(1, 8) + bytes(7, graph) + bytes(8, number(2, opset)); }

/// x [N,3] -> relu(x w), w [3,2].
inline std::string weight() { return initializer(tensor("w", number(1, 3) + number(1, 2), 1, std::string(24, '\0'))); }
inline std::string ends() { return input(value("x", size(3))) + output(value("y", size(2))); }
inline std::string small_graph() { return node("MatMul", in("x") + in("w"), out("h")) + node("Relu", in("h"), out("y")) + weight() + ends(); }

}  // namespace galley::onnx_records
