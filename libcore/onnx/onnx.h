#pragma once
// An ONNX file as data: nodes, initializers, inputs and outputs, as onnx.proto (https://github.com/onnx/onnx, onnx/onnx.proto) lays them
// out. Values of tensors stay in the file, which is mapped. Nothing is computed here: nn/ makes a graph of the nodes, weights/ takes the
// initializers.

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

/// A constant array: an initializer, or the attribute of a node.
struct OnnxTensor {
  std::string name;
  int32_t data_type = 0;       ///< TensorProto.DataType.
  std::string dtype_text;      ///< "FLOAT", "INT64", ...
  std::optional<DType> dtype;  ///< None: a type with which Galley does not compute.
  Shape shape;
  int64_t begin = 0, end = 0;  ///< Bytes of the file, or of `external`, that hold the values as in memory.
  Tensor values;               ///< Where the file spells them as numbers instead.
  std::string external;        ///< Path, relative to the file's folder, of the file that holds them; "" for this one.
};

enum class OnnxAttributeKind { kNone, kFloat, kInt, kString, kTensor, kFloats, kInts, kStrings, kGraph, kOther };

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
};

struct OnnxNode {
  std::string name, op_type, domain;
  std::vector<std::string> inputs, outputs;  ///< "": an optional one that is not there.
  std::vector<OnnxAttribute> attributes;

  const OnnxAttribute* find(std::string_view attribute) const;
  /// "Conv '/layer1/conv1/Conv'": for errors.
  std::string str() const;
};

/// A size of a declared type: a number, or a name ("N") where it is not known.
struct OnnxDimension {
  std::optional<int64_t> size;
  std::string name;
};
struct OnnxValue {
  std::string name;
  int32_t data_type = 0;
  bool has_shape = false;
  std::vector<OnnxDimension> shape;
};

struct OnnxModel {
  int64_t ir_version = 0;
  std::string producer;                   ///< Name and version.
  std::map<std::string, int64_t> opsets;  ///< Version by domain; "" is ONNX's own.
  std::string graph_name;
  std::vector<OnnxNode> nodes;
  std::vector<OnnxTensor> initializers;
  std::vector<OnnxValue> inputs, outputs;
  std::map<std::string, std::string> metadata;
  int functions = 0;       ///< Functions that the file defines itself.
  int64_t digest_at = -1;  ///< Where the entry galley.digest begins, which holds the digest of all bytes before it; -1: there is none.

  /// Of ONNX's own operators; 0 where the file names none.
  int64_t opset() const;
};

/// Most nodes, initializers, attributes, names and sizes that a file may have, together.
constexpr int64_t kOnnxItemLimit = 1'000'000;
inline constexpr std::string_view kOnnxDigestKey = "galley.digest";
/// The digest of the file that holds the large values, where there is one.
inline constexpr std::string_view kOnnxDataDigestKey = "galley.data_digest";

/// The model of a file of these bytes. A pure function: every size is checked against the bytes before anything is allocated, and nothing
/// nests deeper than the format's own records, since subgraphs are not read (kGraph marks where one was). Throws Error (exit code 4) naming
/// the record that is damaged.
OnnxModel parse_onnx(std::span<const std::byte> file);
/// Could this be the beginning of an ONNX file? The format has no magic number: the first record's tag, where no other format of weights
/// fits.
bool is_onnx(std::span<const std::byte> start);

/// Name and size of TensorProto.DataType; nullptr where the number is none.
struct OnnxType {
  int32_t number;
  std::string_view text;
  int bits;  ///< 0: no fixed size
  std::optional<DType> dtype;
};
const OnnxType* find_onnx_type(int32_t number);
/// The number of a dtype.
int32_t onnx_type(DType dtype);

/// A mapped file. Tensors read from it share the mapping and outlive this object.
class OnnxFile {
 public:
  /// Opens and checks the structure. Throws Error (exit code 4).
  explicit OnnxFile(const std::string& path);

  const std::string& path() const { return path_; }
  const OnnxModel& model() const { return model_; }
  /// The values, contiguous and not to be written: without a copy where they lie aligned. Values kept in another file are read from below
  /// this file's folder, and from nowhere else. Throws Error (exit code 4).
  Tensor read(const OnnxTensor& tensor) const;
  /// Galley's own files carry a digest.
  bool has_digest() const;
  /// Compares it, reading the file anew, and that of the file of large values. Does nothing for a file without.
  void verify() const;

 private:
  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  OnnxModel model_;
};

}  // namespace galley
