#include "libcore/backends/cuda/library_products.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/vendor/cuda/blas_lt.h"

namespace galley {
namespace {

using namespace cuda;

const lt::Functions& library() { return lt::blas_lt().functions; }

/// The handle of a GPU; null: the library cannot start there, which is logged once.
lt::Handle handle_of(const CudaDevice& device) {
  static std::mutex mutex;
  static std::map<const CudaDevice*, lt::Handle> handles;
  const std::lock_guard lock(mutex);
  const auto [place, added] = handles.try_emplace(&device, nullptr);
  if (!added) return place->second;
  device.make_current();
  if (const lt::Status status = library().cublasLtCreate(&place->second); status != lt::kSuccess) {
    place->second = nullptr;
    log(LogLevel::kWarning, cat("cuBLASLt (", lt::blas_lt().state.file, ") cannot start (", status, "): products run on own kernels"));
  }
  return place->second;
}

int type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return lt::kRealF32;
    case DType::kF16: return lt::kRealF16;
    case DType::kI8: return lt::kRealI8;
    case DType::kI32: return lt::kRealI32;
    case DType::kF8E4M3: return lt::kRealF8E4M3;
    default: return lt::kRealBF16;
  }
}
bool is_integer(const ProductForm& form) { return form.dtype == DType::kI8; }
bool is_f8(const ProductForm& form) { return form.dtype == DType::kF8E4M3; }
DType type_of_sums(const ProductForm& form) { return is_integer(form) ? DType::kI32 : is_f8(form) ? DType::kF32 : form.dtype; }
int compute_type(const ProductForm& form) {
  return is_integer(form) ? lt::kComputeI32 : form.tf32 && form.dtype == DType::kF32 ? lt::kComputeTf32 : lt::kComputeF32;
}

/// The library's matrices are column-major, so a row-major matrix is the transpose of one: the library computes y^T = b^T a^T.
lt::Layout layout_of(DType dtype, int64_t rows, int64_t columns, int64_t line, int64_t batch, int64_t stride) {
  lt::Layout layout = nullptr;
  lt::check(library().cublasLtMatrixLayoutCreate(&layout, type_of(dtype), static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                                                 line > 0 ? line : columns),
            "describing a matrix");
  if (batch > 1) {
    const auto count = static_cast<int32_t>(batch);
    lt::check(library().cublasLtMatrixLayoutSetAttribute(layout, lt::kBatches, &count, sizeof count), "describing a batch");
    lt::check(library().cublasLtMatrixLayoutSetAttribute(layout, lt::kBatchStride, &stride, sizeof stride), "describing a batch");
  }
  return layout;
}

}  // namespace

struct LibraryProduct::Plan {
  std::mutex mutex;  // the description has the address of the bias
  bool tried = false, possible = false;
  lt::Product product = nullptr;
  lt::Layout a = nullptr, b = nullptr, y = nullptr;
  lt::Algorithm algorithm{};
  size_t workspace = 0;

  ~Plan() {
    for (const lt::Layout layout : {a, b, y})
      if (layout != nullptr) library().cublasLtMatrixLayoutDestroy(layout);
    if (product != nullptr) library().cublasLtMatmulDescDestroy(product);
  }
  void describe(const ProductForm& form) {
    lt::check(library().cublasLtMatmulDescCreate(&product, compute_type(form), is_integer(form) ? lt::kRealI32 : lt::kRealF32),
              "describing a product");
    // The first operand of the library is b.
    const int32_t b_transposed = form.b_transposed, a_transposed = form.a_transposed;
    set(lt::kTransposeA, b_transposed);
    set(lt::kTransposeB, a_transposed);
    set(lt::kEpilogue, (form.relu ? lt::kRelu : form.bias ? 0u : lt::kPlain) | (form.bias ? lt::kBias : 0u));
    if (form.bias) set(lt::kBiasType, static_cast<int32_t>(type_of(form.dtype)));
    a = layout_of(form.dtype, form.a_transposed ? form.k : form.m, form.a_transposed ? form.m : form.k, form.a_line, form.batch,
                  form.a_batch);
    b = layout_of(form.dtype, form.b_transposed ? form.n : form.k, form.b_transposed ? form.k : form.n, 0, form.batch, form.b_batch);
    y = layout_of(type_of_sums(form), form.m, form.n, 0, form.batch, form.m * form.n);
  }
  /// Asks for the algorithm that is probably the fastest.
  void choose(lt::Handle handle, size_t most_workspace, bool deterministic) {
    lt::Preference preference = nullptr;
    lt::check(library().cublasLtMatmulPreferenceCreate(&preference), "describing limits");
    const auto limit = [&](int attribute, auto value) {
      lt::check(library().cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value), "describing limits");
    };
    limit(lt::kMostWorkspace, most_workspace);
    if (deterministic) limit(lt::kReductions, uint32_t{lt::kReduceInF32 | lt::kReduceInResultType});
    for (const int operand : {lt::kAlignmentA, lt::kAlignmentB, lt::kAlignmentC, lt::kAlignmentD}) limit(operand, uint32_t{16});
    lt::Candidate best{};
    int found = 0;
    const lt::Status status = library().cublasLtMatmulAlgoGetHeuristic(handle, product, b, a, y, y, preference, 1, &best, &found);
    library().cublasLtMatmulPreferenceDestroy(preference);
    if (status != lt::kNotSupported) lt::check(status, "choosing an algorithm");
    possible = status == lt::kSuccess && found > 0 && best.status == lt::kSuccess && best.workspace <= most_workspace;
    algorithm = best.algorithm;
    workspace = best.workspace;
  }
  template <class T>
  void set(int attribute, T value) {
    lt::check(library().cublasLtMatmulDescSetAttribute(product, attribute, &value, sizeof value), "describing a product");
  }
};

std::string library_declines(const ProductForm& form) {
  if (is_integer(form)) {
    if (form.a_transposed || !form.b_transposed || form.n % 4 != 0 || form.k % 4 != 0) return "integers in another form";
    if (form.bias || form.relu) return "integers with an epilogue";
  } else if (is_f8(form)) {
    if (form.a_transposed || !form.b_transposed || form.n % 16 != 0 || form.k % 16 != 0) return "f8 in another form";
    if (form.bias || form.relu) return "f8 with an epilogue";
  } else if (form.dtype != DType::kF32 && form.dtype != DType::kF16 && form.dtype != DType::kBF16) {
    return cat("dtype ", form.dtype);
  }
  if (form.batch * form.m * form.n * form.k == 0) return "empty operands";
  constexpr int64_t kLargest = int64_t{1} << 31;
  if (std::max({form.m, form.n, form.k, form.batch}) >= kLargest) return "a size of 2^31 or more";
  return warn_of_problem(lt::blas_lt().state);
}

LibraryProduct::LibraryProduct(const ProductForm& form) : form_(form), plan_(std::make_unique<Plan>()) {}
LibraryProduct::~LibraryProduct() = default;

int64_t LibraryProduct::workspace_bytes() const {
  constexpr int64_t kMost = 32 << 20;  // what NVIDIA recommends for Hopper
  constexpr int64_t kParts = 16;       // sums of k in parts, each with results in f32
  return std::min(kMost, kParts * 4 * form_.batch * form_.m * form_.n);
}

bool LibraryProduct::run(Stream& stream, const void* a, const void* b, const void* bias, void* y, void* workspace) const {
  auto& device = static_cast<CudaDevice&>(stream.device());
  const lt::Handle handle = handle_of(device);
  if (handle == nullptr) return false;
  device.make_current();
  Plan& plan = *plan_;
  const std::lock_guard lock(plan.mutex);
  if (!plan.tried) {
    plan.tried = true;
    plan.describe(form_);
    plan.choose(handle, static_cast<size_t>(workspace_bytes()), form_.deterministic);
  }
  if (!plan.possible) return false;
  if (form_.bias) plan.set(lt::kBiasAddress, bias);
  const float ones[] = {1, 0};
  const int32_t whole_ones[] = {1, 0};
  const auto scale = [&](int i) { return is_integer(form_) ? static_cast<const void*>(whole_ones + i) : ones + i; };
  lt::check(library().cublasLtMatmul(handle, plan.product, scale(0), b, plan.b, a, plan.a, scale(1), y, plan.y, y, plan.y, &plan.algorithm,
                                     workspace, plan.workspace, cuda_stream(stream)),
            cat("starting a product ", form_.m, "x", form_.n, "x", form_.k));
  return true;
}

}  // namespace galley
