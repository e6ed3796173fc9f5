// A stand-in for libcublasLt.so.13: products in double over the memory and the streams of the stand-in driver. It refuses what the library
// refuses, wants a workspace, rounds operands to TF32 where that is allowed, and gives other last bits in each run where sums may be in any
// order, so that tests see it.

#include "libcore/vendor/cuda/blas_lt.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "tests/backends/cuda/stand_in/calls.h"
#include "tests/backends/cuda/stand_in/emulate.h"
// The types, after the emulation.
#include "libcore/backends/cuda/kernels/portable.h"

namespace {

using namespace galley;
using namespace galley::cuda;
using lt::Status;

constexpr Status kInvalidValue = 7;

struct StandInProduct {
  int compute = 0, transpose_a = 0, transpose_b = 0, bias_type = -1;
  unsigned epilogue = lt::kPlain;
  const void* bias = nullptr;
};
struct StandInLayout {
  int type = 0, batches = 1;
  int64_t rows = 0, columns = 0, leading = 0, stride = 0;
};
struct StandInPreference {
  uint64_t workspace = 0;
  uint32_t reductions = lt::kReduceInPlace | lt::kReduceInF32 | lt::kReduceInResultType;
};
constexpr uint64_t kInOrder = 42, kAnyOrder = 43;  // algorithms
template <class T, class H>
T& of(H handle) {
  return *reinterpret_cast<T*>(handle);
}

device::Type type_of(int type) {
  switch (type) {
    case lt::kRealF32: return device::kF32;
    case lt::kRealF16: return device::kF16;
    case lt::kRealI8: return device::kI8;
    case lt::kRealI32: return device::kI32;
    default: return device::kBF16;
  }
}

template <class T>
bool read(T& to, const void* value, size_t bytes) {
  if (bytes != sizeof(T)) return false;
  std::memcpy(&to, value, bytes);
  return true;
}

double to_tf32(float value) {
  device::Bits bits;
  bits.number = value;
  bits.bits = (bits.bits + 0xfffu + (bits.bits >> 13 & 1u)) & ~0x1fffu;
  return bits.number;
}

/// By the table of the format: S.0000.fff is fff 2^-9, S.eeee.fff is (8 + fff) 2^(eeee - 10), S.1111.111 is NaN.
double from_e4m3(int code) {
  const int exponent = code >> 3 & 15, fraction = code & 7;
  double size = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  if (exponent == 15 && fraction == 7) size = std::numeric_limits<double>::quiet_NaN();
  return (code & 128) != 0 ? -size : size;
}

/// The shapes of op(a) op(b) = d agree. Integers: only a^T b of whole words. f8: only a^T b of whole 16 bytes, to f32, without an epilogue.
bool agree(const StandInProduct& product, const StandInLayout& a, const StandInLayout& b, const StandInLayout& d) {
  if (product.compute == lt::kComputeI32) {
    if (a.type != lt::kRealI8 || b.type != lt::kRealI8 || d.type != lt::kRealI32) return false;
    if (product.transpose_a == 0 || product.transpose_b != 0 || a.rows % 4 != 0 || d.rows % 4 != 0) return false;
  }
  if (a.type == lt::kRealF8E4M3 || b.type == lt::kRealF8E4M3) {
    const bool whole = a.rows % 16 == 0 && a.leading % 16 == 0 && b.leading % 16 == 0 && d.rows % 16 == 0;
    if (a.type != b.type || d.type != lt::kRealF32 || product.compute != lt::kComputeF32 || product.epilogue != lt::kPlain) return false;
    if (product.transpose_a == 0 || product.transpose_b != 0 || !whole) return false;
  }
  const int64_t m = product.transpose_a != 0 ? a.columns : a.rows, k = product.transpose_a != 0 ? a.rows : a.columns;
  const int64_t n = product.transpose_b != 0 ? b.rows : b.columns, kb = product.transpose_b != 0 ? b.columns : b.rows;
  return m == d.rows && n == d.columns && k == kb && a.batches == d.batches && b.batches == d.batches && a.leading >= a.rows &&
         b.leading >= b.rows && d.leading >= d.rows;
}

void multiply(const StandInProduct& product, StandInLayout a_layout, const void* a, StandInLayout b_layout, const void* b,
              StandInLayout d_layout, void* d, double error) {
  const bool tf32 = product.compute == lt::kComputeTf32;
  const auto element = [&](const StandInLayout& layout, const void* values, int64_t batch, int64_t row, int64_t column) {
    const int64_t at = batch * layout.stride + column * layout.leading + row;
    if (layout.type == lt::kRealF8E4M3) return from_e4m3(static_cast<const uint8_t*>(values)[at]);
    const float value = device::load<float>(values, at, type_of(layout.type));
    return tf32 ? to_tf32(value) : static_cast<double>(value);
  };
  const int64_t k = product.transpose_a != 0 ? a_layout.rows : a_layout.columns;
  for (int64_t batch = 0; batch < d_layout.batches; ++batch) {
    for (int64_t column = 0; column < d_layout.columns; ++column) {
      for (int64_t row = 0; row < d_layout.rows; ++row) {
        double sum = 0;
        for (int64_t i = 0; i < k; ++i) {
          sum += (product.transpose_a != 0 ? element(a_layout, a, batch, i, row) : element(a_layout, a, batch, row, i)) *
                 (product.transpose_b != 0 ? element(b_layout, b, batch, column, i) : element(b_layout, b, batch, i, column));
        }
        sum += sum * error;
        if ((product.epilogue & lt::kBias) != 0) sum += device::load<float>(product.bias, row, type_of(product.bias_type));
        if ((product.epilogue & lt::kRelu) != 0 && sum < 0) sum = 0;
        device::store(sum, d, batch * d_layout.stride + column * d_layout.leading + row, type_of(d_layout.type));
      }
    }
  }
}

}  // namespace

#define GALLEY_EXPORT extern "C" __attribute__((visibility("default")))

GALLEY_EXPORT size_t cublasLtGetVersion() { return 130100; }
GALLEY_EXPORT Status cublasLtCreate(lt::Handle* handle) {
  GALLEY_CALL("cublasLtCreate");
  static int only = 0;
  *handle = reinterpret_cast<lt::Handle>(&only);
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtDestroy(lt::Handle) { return lt::kSuccess; }
GALLEY_EXPORT Status cublasLtMatmulDescCreate(lt::Product* product, int compute, int scale) {
  GALLEY_CALL("cublasLtMatmulDescCreate");
  const bool real = scale == lt::kRealF32 && (compute == lt::kComputeF32 || compute == lt::kComputeTf32);
  if (!real && (scale != lt::kRealI32 || compute != lt::kComputeI32)) return lt::kNotSupported;
  *product = reinterpret_cast<lt::Product>(new StandInProduct{.compute = compute});
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtMatmulDescDestroy(lt::Product product) {
  delete &of<StandInProduct>(product);
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtMatmulDescSetAttribute(lt::Product handle, int attribute, const void* value, size_t bytes) {
  auto& product = of<StandInProduct>(handle);
  switch (attribute) {
    case lt::kTransposeA: return read(product.transpose_a, value, bytes) ? lt::kSuccess : kInvalidValue;
    case lt::kTransposeB: return read(product.transpose_b, value, bytes) ? lt::kSuccess : kInvalidValue;
    case lt::kEpilogue: return read(product.epilogue, value, bytes) ? lt::kSuccess : kInvalidValue;
    case lt::kBiasAddress: return read(product.bias, value, bytes) ? lt::kSuccess : kInvalidValue;
    case lt::kBiasType: return read(product.bias_type, value, bytes) ? lt::kSuccess : kInvalidValue;
    default: return kInvalidValue;
  }
}
GALLEY_EXPORT Status cublasLtMatrixLayoutCreate(lt::Layout* layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = reinterpret_cast<lt::Layout>(
      new StandInLayout{.type = type, .rows = static_cast<int64_t>(rows), .columns = static_cast<int64_t>(columns), .leading = leading});
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtMatrixLayoutDestroy(lt::Layout layout) {
  delete &of<StandInLayout>(layout);
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtMatrixLayoutSetAttribute(lt::Layout handle, int attribute, const void* value, size_t bytes) {
  auto& layout = of<StandInLayout>(handle);
  if (attribute == lt::kBatches) return read(layout.batches, value, bytes) ? lt::kSuccess : kInvalidValue;
  if (attribute == lt::kBatchStride) return read(layout.stride, value, bytes) ? lt::kSuccess : kInvalidValue;
  return kInvalidValue;
}
GALLEY_EXPORT Status cublasLtMatmulPreferenceCreate(lt::Preference* preference) {
  *preference = reinterpret_cast<lt::Preference>(new StandInPreference);
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtMatmulPreferenceDestroy(lt::Preference preference) {
  delete &of<StandInPreference>(preference);
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtMatmulPreferenceSetAttribute(lt::Preference preference, int attribute, const void* value, size_t bytes) {
  uint32_t alignment = 0;
  if (attribute == lt::kReductions) return read(of<StandInPreference>(preference).reductions, value, bytes) ? lt::kSuccess : kInvalidValue;
  if (attribute == lt::kMostWorkspace)
    return read(of<StandInPreference>(preference).workspace, value, bytes) ? lt::kSuccess : kInvalidValue;
  return attribute >= lt::kAlignmentA && attribute <= lt::kAlignmentD && read(alignment, value, bytes) ? lt::kSuccess : kInvalidValue;
}
GALLEY_EXPORT Status cublasLtMatmulAlgoGetHeuristic(lt::Handle, lt::Product product, lt::Layout a, lt::Layout b, lt::Layout c, lt::Layout d,
                                                    lt::Preference preference, int wanted, lt::Candidate* candidates, int* found) {
  GALLEY_CALL("cublasLtMatmulAlgoGetHeuristic");
  if (wanted < 1 || c != d || !agree(of<StandInProduct>(product), of<StandInLayout>(a), of<StandInLayout>(b), of<StandInLayout>(d)))
    return kInvalidValue;
  const auto& limits = of<StandInPreference>(preference);
  const uint64_t workspace = std::min<uint64_t>(limits.workspace, 4096);
  *candidates = {.algorithm = {{(limits.reductions & lt::kReduceInPlace) != 0 ? kAnyOrder : kInOrder}},
                 .workspace = workspace,
                 .status = lt::kSuccess,
                 .waves = 1,
                 .reserved = {}};
  *found = 1;
  return lt::kSuccess;
}
GALLEY_EXPORT Status cublasLtMatmul(lt::Handle, lt::Product handle, const void* alpha, const void* a, lt::Layout a_layout, const void* b,
                                    lt::Layout b_layout, const void* beta, const void* c, lt::Layout c_layout, void* d, lt::Layout d_layout,
                                    const lt::Algorithm* algorithm, void* workspace, size_t workspace_bytes, StreamHandle stream) {
  GALLEY_CALL("cublasLtMatmul");
  const auto& product = of<StandInProduct>(handle);
  const bool integer = product.compute == lt::kComputeI32;
  const auto number = [&](const void* at) {
    return integer ? static_cast<double>(*static_cast<const int32_t*>(at)) : static_cast<double>(*static_cast<const float*>(at));
  };
  const double one = number(alpha), zero = number(beta);
  if (one != 1 || zero != 0 || c != d || c_layout != d_layout || (algorithm->data[0] != kInOrder && algorithm->data[0] != kAnyOrder) ||
      (workspace_bytes > 0 && workspace == nullptr) || ((product.epilogue & lt::kBias) != 0) != (product.bias != nullptr) ||
      !agree(product, of<StandInLayout>(a_layout), of<StandInLayout>(b_layout), of<StandInLayout>(d_layout)))
    return kInvalidValue;
  const StandInLayout first = of<StandInLayout>(a_layout), second = of<StandInLayout>(b_layout), result = of<StandInLayout>(d_layout);
  const bool any_order = algorithm->data[0] == kAnyOrder;
  return stand_in::enqueue(stream, "cublasLtMatmul", static_cast<unsigned>(result.batches), [=, product = product] {
    std::memset(workspace, 0xff, workspace_bytes);
    multiply(product, first, a, second, b, result, d, any_order ? stand_in::error_of_order() : 0);
  });
}
