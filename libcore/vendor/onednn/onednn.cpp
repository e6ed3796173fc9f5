#include "libcore/vendor/onednn/onednn.h"

#include <dlfcn.h>
#include <omp.h>
#include <oneapi/dnnl/dnnl_debug.h>

#include <algorithm>
#include <array>
#include <map>

#include "libcore/base/processor.h"

namespace galley::onednn {
namespace {

using Tag = dnnl::memory::format_tag;

/// oneDNN's format tags by name ("Acdb64a").
const std::map<std::string, Tag, std::less<>>& tags() {
  static const auto table = [] {
    std::map<std::string, Tag, std::less<>> found;
    for (int tag = dnnl_format_tag_any + 1; tag < dnnl_format_tag_last; ++tag) {
      const char* name = dnnl_fmt_tag2str(static_cast<dnnl_format_tag_t>(tag));
      if (name != nullptr) found.emplace(name, static_cast<Tag>(tag));
    }
    return found;
  }();
  return table;
}

/// TAG of a format "blocked(TAG)".
std::string tag_of(const MemoryFormat& format) {
  const std::string text = format.str();
  return text.substr(8, text.size() - 9);
}

std::vector<int64_t> dims_of(const Shape& shape) {
  if (shape.rank() == 0) return {1};
  return {shape.begin(), shape.end()};
}

bool is_depthwise(const Shape& weight, int64_t groups) { return weight[0] == groups && weight[1] == 1; }

std::vector<int64_t> grouped_dims(const Shape& weight, int64_t groups) {
  std::vector<int64_t> dims{groups, weight[0] / groups};
  dims.insert(dims.end(), weight.begin() + 1, weight.end());
  return dims;
}

/// Converts the tag of a depthwise weight to that of a weight with groups: inserts an output channel 'b' of size 1 after the group.
std::string with_group(const std::string& tag) {
  std::string grouped;
  for (const char letter : tag) {
    const bool outer = letter == 'a' || letter == 'A';
    grouped += letter >= 'b' && letter <= 'e' ? static_cast<char>(letter + 1) : letter;
    if (outer && grouped.size() == 1) grouped += 'b';
  }
  return grouped;
}

std::string without_group(const std::string& tag) {
  std::string plain;
  for (const char letter : tag) {
    if (letter != 'b') plain += letter >= 'c' && letter <= 'f' ? static_cast<char>(letter - 1) : letter;
  }
  return plain;
}

/// The tag of this layout, or "" if there is none.
std::string matching_tag(const Desc& desc) {
  const auto dims = desc.get_dims();
  for (const auto& [name, tag] : tags()) {
    const auto letters = std::count_if(name.begin(), name.end(), [](char c) { return c >= 'A' && c <= 'Z'; });
    // The letters before the first digit name the dimensions.
    const auto rank =
        static_cast<size_t>(std::find_if(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; }) - name.begin());
    if (rank != dims.size() || (letters == 0) != (desc.get_inner_nblks() == 0)) continue;
    const Desc candidate(dims, desc.get_data_type(), tag, /*allow_empty=*/true);
    if (candidate && candidate == desc) return name;
  }
  return "";
}

}  // namespace

void fail_with(const dnnl::error& error, const char* expression) {
  const std::string text = cat("oneDNN failed in '", expression, "': ", error.what(), " (status ", dnnl_status2str(error.status), ")");
  if (error.status == dnnl_out_of_memory) fail(ErrorCode::kResource, text);
  throw InternalError(text);
}

const dnnl::engine& engine() {
  static const dnnl::engine cpu = GALLEY_ONEDNN(dnnl::engine(dnnl::engine::kind::cpu, 0));
  return cpu;
}

dnnl::stream& stream() {
  thread_local dnnl::stream mine = GALLEY_ONEDNN(dnnl::stream(engine()));
  return mine;
}

std::string version_and_file() {
  const dnnl_version_t* version = dnnl_version();
  std::string isa = dnnl_cpu_isa2str(dnnl_get_effective_cpu_isa());
  if (isa.starts_with("cpu_isa_")) isa.erase(0, 8);
  Dl_info library{};
  const bool found = dladdr(reinterpret_cast<const void*>(&dnnl_version), &library) != 0 && library.dli_fname != nullptr;
  return cat("oneDNN ", version->major, ".", version->minor, ".", version->patch, ", ", isa, found ? cat(", ", library.dli_fname) : "");
}

namespace {
bool has(dnnl_cpu_isa_t isa) { return (dnnl_get_effective_cpu_isa() & isa) == isa; }
}  // namespace

bool has_avx512() { return has(dnnl_cpu_isa_avx512_core); }

bool computes_in(DType dtype) {
  if (dtype == DType::kF32) return true;
  return dtype == DType::kBF16 && has_fast_bf16() && has(dnnl_cpu_isa_avx512_core_bf16);
}

std::string declines(DType a, DType b) {
  if (a != b) return cat("dtypes ", a, " and ", b);
  if (data_type(a) == dnnl::memory::data_type::undef || !computes_in(a))
    return cat("dtype ", a, a == DType::kBF16 ? " without fast instructions on this processor" : "");
  return "";
}

dnnl::memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return dnnl::memory::data_type::f32;
    case DType::kBF16: return dnnl::memory::data_type::bf16;
    case DType::kF16: return dnnl::memory::data_type::f16;
    case DType::kI32: return dnnl::memory::data_type::s32;
    case DType::kI8: return dnnl::memory::data_type::s8;
    case DType::kU8: return dnnl::memory::data_type::u8;
    default: return dnnl::memory::data_type::undef;
  }
}

bool knows(const Shape& shape, const MemoryFormat& format) {
  static_cast<void>(shape);
  return !format.is_blocked() || tags().contains(tag_of(format));
}

Desc desc(DType dtype, const Shape& shape, const MemoryFormat& format) {
  if (!format.is_blocked()) {
    if (shape.rank() == 0) return strided_desc(dtype, {1}, {1});
    const Shape strides = format.strides(shape);
    return strided_desc(dtype, dims_of(shape), {strides.begin(), strides.end()});
  }
  const auto tag = tags().find(tag_of(format));
  GALLEY_ASSERT(tag != tags().end(), "oneDNN has no layout ", format);
  return GALLEY_ONEDNN(Desc(dims_of(shape), data_type(dtype), tag->second));
}

Desc any_desc(DType dtype, const Shape& shape) { return GALLEY_ONEDNN(Desc(dims_of(shape), data_type(dtype), Tag::any)); }

Desc strided_desc(DType dtype, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  return GALLEY_ONEDNN(Desc(sizes, data_type(dtype), strides));
}

std::optional<MemoryFormat> format_of(const Desc& desc) {
  const auto dims = desc.get_dims();
  const Shape shape{std::span<const int64_t>(dims)};
  if (desc.get_inner_nblks() == 0) {
    const auto strides = desc.get_strides();
    for (const MemoryFormat& format : {MemoryFormat::contiguous(), MemoryFormat::channels_last_for_rank(shape.rank())}) {
      const Shape want = format.strides(shape);
      if (std::equal(strides.begin(), strides.end(), want.begin(), want.end())) return format;
    }
  }
  const std::string tag = matching_tag(desc);
  if (tag.empty()) return std::nullopt;
  return MemoryFormat::blocked(tag);
}

std::optional<Desc> weight_desc(DType dtype, const Shape& shape, const MemoryFormat& format, int64_t groups) {
  if (groups == 1) {
    if (!knows(shape, format)) return std::nullopt;
    return desc(dtype, shape, format);
  }
  if (!format.is_blocked()) {
    const Shape s = format.strides(shape);
    std::vector<int64_t> strides{shape[0] / groups * s[0]};
    strides.insert(strides.end(), s.begin(), s.end());
    return strided_desc(dtype, grouped_dims(shape, groups), strides);
  }
  const auto tag = is_depthwise(shape, groups) ? tags().find(with_group(tag_of(format))) : tags().end();
  if (tag == tags().end()) return std::nullopt;
  return GALLEY_ONEDNN(Desc(grouped_dims(shape, groups), data_type(dtype), tag->second));
}

Desc any_weight_desc(DType dtype, const Shape& shape, int64_t groups) {
  if (groups == 1) return any_desc(dtype, shape);
  return GALLEY_ONEDNN(Desc(grouped_dims(shape, groups), data_type(dtype), Tag::any));
}

std::optional<MemoryFormat> weight_format_of(const Desc& desc, const Shape& shape, int64_t groups) {
  std::optional<MemoryFormat> format;
  if (groups == 1) {
    format = format_of(desc);
  } else if (is_depthwise(shape, groups)) {
    // 'B': the output channel of a group, of size 1, is padded to a block, which a weight without groups cannot be.
    const std::string tag = matching_tag(desc);
    if (!tag.empty() && tag.find('B') == std::string::npos) format = MemoryFormat::blocked(without_group(tag));
  }
  // Accept only a format that converts back to the same descriptor (not with extra flags, compensation or unusual orders).
  if (!format || format->is_channels_last()) return std::nullopt;
  const auto type = desc.get_data_type();
  if (type != dnnl::memory::data_type::f32 && type != dnnl::memory::data_type::bf16) return std::nullopt;
  const auto back = weight_desc(type == dnnl::memory::data_type::f32 ? DType::kF32 : DType::kBF16, shape, *format, groups);
  if (!back || *back != desc) return std::nullopt;
  return format;
}

ThreadScope::ThreadScope(int threads) : saved_(omp_get_max_threads()) { omp_set_num_threads(std::max(1, threads)); }
ThreadScope::~ThreadScope() { omp_set_num_threads(saved_); }

struct Call::Binding {
  std::vector<dnnl::memory> memory;
  std::vector<dnnl_exec_arg_t> arguments;
};

struct Call::State {
  dnnl::primitive primitive;
  std::vector<Argument> arguments;
  int threads = 1;
  std::mutex mutex;
  std::vector<std::unique_ptr<Binding>> idle;
};

Call::Call(dnnl::primitive primitive, std::vector<Argument> arguments, int threads) : state_(std::make_shared<State>()) {
  state_->primitive = std::move(primitive);
  state_->arguments = std::move(arguments);
  state_->threads = threads;
}

void Call::run(std::initializer_list<const void*> addresses) const {
  GALLEY_ASSERT(addresses.size() == state_->arguments.size());
  std::unique_ptr<Binding> binding;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->idle.empty()) {
      binding = std::move(state_->idle.back());
      state_->idle.pop_back();
    }
  }
  try {
    if (binding == nullptr) {
      binding = std::make_unique<Binding>();
      for (const Argument& argument : state_->arguments) {
        binding->memory.emplace_back(argument.desc, engine(), nullptr);
        binding->arguments.push_back({argument.id, binding->memory.back().get()});
      }
    }
    for (size_t i = 0; i < addresses.size(); ++i) {
      dnnl::error::wrap_c_api(dnnl_memory_set_data_handle(binding->arguments[i].memory, const_cast<void*>(addresses.begin()[i])),
                              "could not set an argument's address");
    }
    const ThreadScope threads(state_->threads);
    dnnl::error::wrap_c_api(dnnl_primitive_execute(state_->primitive.get(), stream().get(), static_cast<int>(binding->arguments.size()),
                                                   binding->arguments.data()),
                            "could not execute a primitive");
    dnnl::error::wrap_c_api(dnnl_stream_wait(stream().get()), "could not wait for a stream");
  } catch (const dnnl::error& error) {
    fail_with(error, "execute");
  }
  const std::lock_guard lock(state_->mutex);
  state_->idle.push_back(std::move(binding));
}

Call make_reorder(const Desc& from, const Desc& to, int threads) {
  const ThreadScope scope(threads);
  const auto made = GALLEY_ONEDNN(dnnl::reorder::primitive_desc(engine(), from, engine(), to));
  return Call(GALLEY_ONEDNN(dnnl::reorder(made)), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, threads);
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

}  // namespace galley::onednn
