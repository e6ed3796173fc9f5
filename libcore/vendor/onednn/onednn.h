#pragma once
// oneDNN basics: engine, streams, descriptors of Galley's tensors, and calls (a primitive with its memory objects).

#include <initializer_list>
#include <memory>
#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/shape.h"
#include "libcore/tensor/dtype.h"
#include "libcore/tensor/format.h"

namespace galley::onednn {

using Desc = dnnl::memory::desc;

/// The CPU engine of the process.
const dnnl::engine& engine();
/// The stream of the calling thread.
dnnl::stream& stream();
/// Version, instruction set in use and file: "oneDNN 3.2.0, avx2, /usr/lib/libdnnl.so.3".
std::string version_and_file();
/// Whether the instruction set in use has 512-bit vectors.
bool has_avx512();
/// Whether the instruction set computes in this dtype at full speed: f32 always; bf16 with avx512_bf16 or AMX if has_fast_bf16().
bool computes_in(DType dtype);

/// Why oneDNN's matrix products and convolutions should not be used for operands of these dtypes (both must be one dtype that computes at
/// full speed); "" if they should.
std::string declines(DType a, DType b);

/// The oneDNN data type, or undef if there is none.
dnnl::memory::data_type data_type(DType dtype);
/// Descriptor of a tensor; a scalar becomes one element. Throws InternalError if oneDNN has no such blocked format.
Desc desc(DType dtype, const Shape& shape, const MemoryFormat& format);
/// A descriptor whose layout oneDNN chooses.
Desc any_desc(DType dtype, const Shape& shape);
/// Descriptor of a strided view; strides in elements.
Desc strided_desc(DType dtype, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);
/// Whether `desc` supports the format.
bool knows(const Shape& shape, const MemoryFormat& format);
/// The format of a descriptor, if Galley has a name for it.
std::optional<MemoryFormat> format_of(const Desc& desc);

/// Descriptor of weights [O,C/groups,kh,kw], of rank 5 (groups first) if groups > 1. nullopt if the rank-4 format has no such form (blocked
/// weights of a grouped convolution that is not depthwise).
std::optional<Desc> weight_desc(DType dtype, const Shape& shape, const MemoryFormat& format, int64_t groups);
Desc any_weight_desc(DType dtype, const Shape& shape, int64_t groups);
/// Galley's rank-4 format of a weight descriptor; nullopt as above.
std::optional<MemoryFormat> weight_format_of(const Desc& desc, const Shape& shape, int64_t groups);

/// Sets oneDNN's thread count for the calling thread for its lifetime.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int saved_;
};

/// A primitive with its memory objects. Thread-safe: any number of threads may run it, each on its own memory. A run allocates only when
/// more threads than before run it at the same time.
class Call {
 public:
  struct Argument {
    int id;  // DNNL_ARG_...
    Desc desc;
  };
  Call() = default;
  Call(dnnl::primitive primitive, std::vector<Argument> arguments, int threads);
  explicit operator bool() const { return state_ != nullptr; }
  /// Runs on these addresses, one per argument, and waits.
  void run(std::initializer_list<const void*> addresses) const;

 private:
  struct Binding;
  struct State;
  std::shared_ptr<State> state_;
};

/// A copy between layouts or dtypes, with its scratchpad.
Call make_reorder(const Desc& from, const Desc& to, int threads);

/// Attributes for a scratchpad that the caller provides.
dnnl::primitive_attr user_scratchpad();

/// Throws Error (kResource) if memory is exhausted, otherwise InternalError.
[[noreturn]] void fail_with(const dnnl::error& error, const char* expression);

}  // namespace galley::onednn

/// Evaluates a oneDNN expression; on failure calls fail_with with the expression's text.
#define GALLEY_ONEDNN(...)                              \
  [&]() -> decltype(auto) {                             \
    try {                                               \
      return __VA_ARGS__;                               \
    } catch (const ::dnnl::error& error) {              \
      ::galley::onednn::fail_with(error, #__VA_ARGS__); \
    }                                                   \
  }()
