// Types of tensors, and what is asked of nodes and models.

#include "libcore/onnx/onnx.h"

#include <algorithm>
#include <array>

#include "libcore/base/error.h"

namespace galley {
namespace {

constexpr std::array<OnnxType, 23> kTypes{{{1, "FLOAT", 32, DType::kF32},
                                           {2, "UINT8", 8, DType::kU8},
                                           {3, "INT8", 8, DType::kI8},
                                           {4, "UINT16", 16, {}},
                                           {5, "INT16", 16, DType::kI16},
                                           {6, "INT32", 32, DType::kI32},
                                           {7, "INT64", 64, DType::kI64},
                                           {8, "STRING", 0, {}},
                                           {9, "BOOL", 8, DType::kBool},
                                           {10, "FLOAT16", 16, DType::kF16},
                                           {11, "DOUBLE", 64, DType::kF64},
                                           {12, "UINT32", 32, {}},
                                           {13, "UINT64", 64, {}},
                                           {14, "COMPLEX64", 64, {}},
                                           {15, "COMPLEX128", 128, {}},
                                           {16, "BFLOAT16", 16, DType::kBF16},
                                           {17, "FLOAT8E4M3FN", 8, {}},
                                           {18, "FLOAT8E4M3FNUZ", 8, {}},
                                           {19, "FLOAT8E5M2", 8, {}},
                                           {20, "FLOAT8E5M2FNUZ", 8, {}},
                                           {21, "UINT4", 4, {}},
                                           {22, "INT4", 4, {}},
                                           {23, "FLOAT4E2M1", 4, {}}}};

}  // namespace

const OnnxType* find_onnx_type(int32_t number) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const OnnxType& type) { return type.number == number; });
  return found == kTypes.end() ? nullptr : &*found;
}

int32_t onnx_type(DType dtype) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const OnnxType& type) { return type.dtype == dtype; });
  GALLEY_ASSERT(found != kTypes.end());
  return found->number;
}

const OnnxAttribute* OnnxNode::find(std::string_view attribute) const {
  const auto found = std::find_if(attributes.begin(), attributes.end(), [&](const OnnxAttribute& a) { return a.name == attribute; });
  return found == attributes.end() ? nullptr : &*found;
}

std::string OnnxNode::str() const {
  const std::string op = domain.empty() ? op_type : cat(domain, ".", op_type);
  const std::string which = !name.empty() ? name : outputs.empty() ? std::string() : outputs.front();
  return which.empty() ? op : cat(op, " '", which.substr(0, 200), "'");
}

int64_t OnnxModel::opset() const {
  const auto found = opsets.find("");
  return found == opsets.end() ? 0 : found->second;
}

}  // namespace galley
