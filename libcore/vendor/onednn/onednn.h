#pragma once
// oneDNN for Galley: engine, streams, descriptors of Galley's arrays, and calls (a primitive with its memory objects).

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
/// A stream of the calling thread.
dnnl::stream& stream();
/// Version and the instruction set in use: "oneDNN 3.2.0 avx2".
std::string version_and_isa();
/// Does the instruction set in use have vectors of 512 bits?
bool has_avx512();
/// Does the instruction set compute in this dtype at full speed? f32 always; bf16 from avx512_bf16 or AMX, where has_fast_bf16.
bool computes_in(DType dtype);

/// Why the library's products are not for these operands, all of one type that it computes in at full speed; "" where they are.
std::string declines(DType a, DType b);

/// The library's element type, or undef where it has none.
dnnl::memory::data_type data_type(DType dtype);
/// Descriptor of an array; a scalar becomes one element. Throws InternalError where the blocked format is unknown to the library.
Desc desc(DType dtype, const Shape& shape, const MemoryFormat& format);
/// The layout left to the library.
Desc any_desc(DType dtype, const Shape& shape);
/// A strided view.
Desc strided_desc(DType dtype, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);
/// Is the format one that `desc` can express?
bool knows(const Shape& shape, const MemoryFormat& format);
/// The format of a descriptor that the library chose, where Galley can name it.
std::optional<MemoryFormat> format_of(const Desc& desc);

/// Weights [O,C/groups,kh,kw] as the library sees them: of rank 5 (groups first) where groups > 1. nullopt where the format, given for
/// rank 4, has no such reading (blocked weights of a grouped convolution that is not depthwise).
std::optional<Desc> weight_desc(DType dtype, const Shape& shape, const MemoryFormat& format, int64_t groups);
Desc any_weight_desc(DType dtype, const Shape& shape, int64_t groups);
/// Galley's rank-4 format of weights that the library laid out; nullopt as above.
std::optional<MemoryFormat> weight_format_of(const Desc& desc, const Shape& shape, int64_t groups);

/// Sets the library's thread count for the calling thread while it lives.
class ThreadScope {
 public:
  explicit ThreadScope(int threads);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;

 private:
  int saved_;
};

/// A primitive and its memory objects. Immutable to its users: any number of threads may run it, each on its own memory. A run
/// allocates only the first time that so many threads run it at once.
class Call {
 public:
  struct Argument {
    int id;  // DNNL_ARG_...
    Desc desc;
  };
  Call() = default;
  Call(dnnl::primitive primitive, std::vector<Argument> arguments, int threads);
  explicit operator bool() const { return state_ != nullptr; }
  /// Runs on these addresses, one an argument, and waits.
  void run(std::initializer_list<const void*> addresses) const;

 private:
  struct Binding;
  struct State;
  std::shared_ptr<State> state_;
};

/// A copy between layouts or dtypes, scratchpad included in the call.
Call make_reorder(const Desc& from, const Desc& to, int threads);

/// Attributes with a scratchpad that the caller provides.
dnnl::primitive_attr user_scratchpad();

[[noreturn]] void fail_with(const dnnl::error& error, const char* expression);

}  // namespace galley::onednn

/// Evaluates an expression of the library; its failure becomes an error that names the expression.
#define GALLEY_ONEDNN(...)                              \
  [&]() -> decltype(auto) {                             \
    try {                                               \
      return __VA_ARGS__;                               \
    } catch (const ::dnnl::error& error) {              \
      ::galley::onednn::fail_with(error, #__VA_ARGS__); \
    }                                                   \
  }()
