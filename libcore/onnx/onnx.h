#pragma once
// An ONNX file as data: nodes, initializers, inputs and outputs, following onnx.proto (https://github.com/onnx/onnx, onnx/onnx.proto).
// Tensor values stay in the mapped file. onnx/import builds models from the nodes; weights/ loads the initializers.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/file.h"
#include "libcore/tensor/tensor.h"

namespace galley {

/// A constant tensor: an initializer, or an attribute of a node.
struct OnnxTensor {
  std::string name;
  int32_t data_type = 0;       ///< TensorProto.DataType.
  std::string dtype_text;      ///< "FLOAT", "INT64", ...
  std::optional<DType> dtype;  ///< Empty for types that Galley does not support.
  Shape shape;
  int64_t begin = 0, end = 0;  ///< Byte range of the values in the file or in `external`, in memory format.
  Tensor values;               ///< The values, if the file stores them as repeated numbers instead.
  std::string external;        ///< Path, relative to the file's folder, of the file with the values; "": this file.
};

/// The kind of value of an attribute.
enum class OnnxAttributeKind { kNone, kFloat, kInt, kString, kTensor, kFloats, kInts, kStrings, kGraph, kOther };

/// An attribute of a node; `kind` determines which member holds its value.
struct OnnxGraph;
struct OnnxAttribute {
  std::string name;
  OnnxAttributeKind kind = OnnxAttributeKind::kNone;
  double f = 0;
  int64_t i = 0;
  std::string s;
  std::optional<OnnxTensor> tensor;
  std::vector<double> floats;
  std::vector<int64_t> ints;
  std::vector<std::string> strings;
  std::shared_ptr<const OnnxGraph> graph;  ///< Of kGraph in files to write; null in files that were read.
};

/// A node of a graph.
struct OnnxNode {
  std::string name, op_type, domain;
  std::vector<std::string> inputs, outputs;  ///< "" for an absent optional one.
  std::vector<OnnxAttribute> attributes;

  const OnnxAttribute* find(std::string_view attribute) const;
  /// "Conv '/layer1/conv1/Conv'", for error messages.
  std::string str() const;
};

/// A dimension of a declared type: a number, or a name ("N") if it is open.
struct OnnxDimension {
  std::optional<int64_t> size;
  std::string name;
};
/// A declared input or output.
struct OnnxValue {
  std::string name;
  int32_t data_type = 0;
  bool has_shape = false;
  std::vector<OnnxDimension> shape;
};

/// The body of a loop. Its nodes may read values of the graph around it.
struct OnnxGraph {
  std::string name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxValue> inputs, outputs;
};

/// The contents of a file.
struct OnnxModel {
  int64_t ir_version = 0;
  std::string producer;                   ///< Name and version of the program that wrote the file.
  std::map<std::string, int64_t> opsets;  ///< Operator set version by domain; "" is ONNX's own.
  std::string graph_name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValue> inputs, outputs;
  std::map<std::string, std::string> metadata;
  int functions = 0;       ///< Number of functions that the file defines.
  int64_t digest_at = -1;  ///< Offset of the entry galley.digest, which holds the digest of all bytes before it; -1: none.

  /// Version of ONNX's operator set; 0 if the file has none.
  int64_t opset() const;
};

/// Limit of the nodes, initializers, attributes, names and sizes of a file, counted together.
constexpr int64_t kOnnxItemLimit = 1'000'000;
/// Key of the digest of the file itself.
inline constexpr std::string_view kOnnxDigestKey = "galley.digest";
/// Key of the digest of the external data file.
inline constexpr std::string_view kOnnxDataDigestKey = "galley.data_digest";

/// Parses a file. A pure function: every size is checked against the file before memory is allocated, and subgraphs are not read (only
/// marked by kGraph), so nesting is bounded. Throws Error (exit code 4) naming the damaged record.
OnnxModel parse_onnx(std::span<const std::byte> file);
/// Whether these can be the first bytes of an ONNX file. The format has no magic number; this checks the first record's tag and excludes
/// the other weight formats.
bool is_onnx(std::span<const std::byte> start);

/// A TensorProto.DataType.
struct OnnxType {
  int32_t number;
  std::string_view text;
  int bits;  ///< 0: no fixed size
  std::optional<DType> dtype;
};
/// The type with that number, or nullptr.
const OnnxType* find_onnx_type(int32_t number);
/// The TensorProto.DataType number of a dtype.
int32_t onnx_type(DType dtype);

/// A mapped file. Tensors read from it share the mapping and may outlive this object.
class OnnxFile {
 public:
  /// Opens the file and checks its structure. Throws Error (exit code 4).
  explicit OnnxFile(const std::string& path);

  const std::string& path() const { return path_; }
  const OnnxModel& model() const { return model_; }
  /// The values, contiguous and read-only, without a copy if they are aligned. External files must be inside the folder of this file.
  /// Throws Error (exit code 4).
  Tensor read(const OnnxTensor& tensor) const;
  /// Whether the file has a digest; files written by Galley do.
  bool has_digest() const;
  /// Reads the file again and compares its digest and that of the external data file. Throws Error (exit code 4) if they differ; does
  /// nothing for a file without a digest.
  void verify() const;
  /// As SafetensorsFile::release.
  void release() const { file_->release(); }

 private:
  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  OnnxModel model_;
};

}  // namespace galley
