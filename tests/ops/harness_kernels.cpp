// Tests every kernel against the reference: on each node of a case's graph, in each format, with guard bytes around arrays.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>

#include "libcore/backends/ref/memory.h"
#include "libcore/backends/ref/reference.h"
#include "libcore/device/device.h"
#include "libcore/ops/quantized.h"
#include "libcore/tensor/tensor.h"
#include "tests/ops/harness.h"
#include "tests/support/target.h"

namespace galley::test {
namespace {

constexpr size_t kGuard = 64;
constexpr auto kGuardByte = std::byte{0xA5};

/// An array between guard bytes, 64-byte aligned. Filled with NaN (0xFF), so that unwritten elements and reads outside are detected.
class Guarded {
 public:
  explicit Guarded(int64_t bytes) : bytes_(static_cast<size_t>(bytes)), memory_(bytes_ + 3 * kGuard, std::byte{0xFF}) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    start_ = kGuard + (kGuard - address % kGuard) % kGuard;
    std::memset(memory_.data(), static_cast<int>(kGuardByte), start_);
    std::memset(memory_.data() + start_ + bytes_, static_cast<int>(kGuardByte), memory_.size() - start_ - bytes_);
  }
  void* data() { return memory_.data() + start_; }
  std::vector<std::byte> content() const {
    return {memory_.begin() + static_cast<std::ptrdiff_t>(start_), memory_.begin() + static_cast<std::ptrdiff_t>(start_ + bytes_)};
  }
  bool intact() const {
    for (size_t i = 0; i < memory_.size(); ++i) {
      if ((i < start_ || i >= start_ + bytes_) && memory_[i] != kGuardByte) return false;
    }
    return guards_intact_;
  }

  /// The address for kernels of a device: of this memory, or of a copy between guard bytes in the device's memory.
  void* on(Device& device) {
    if (device.is_host()) return data();
    if (!block_) {
      const auto size = static_cast<int64_t>(bytes_ + 2 * kDeviceGuard);
      block_ = Storage::allocate(size, device);
      std::vector<std::byte> filled(static_cast<size_t>(size), kGuardByte);
      std::memcpy(filled.data() + kDeviceGuard, data(), bytes_);
      device.stream().copy(block_->address(), filled.data(), size);
    }
    return static_cast<std::byte*>(block_->address()) + kDeviceGuard;
  }
  /// Copies the array back from the device, and checks the guard bytes there.
  void take_back(Device& device) {
    if (!block_) return;
    std::vector<std::byte> read(bytes_ + 2 * kDeviceGuard);
    device.stream().copy(read.data(), block_->address(), static_cast<int64_t>(read.size()));
    const auto is_guard = [](std::byte b) { return b == kGuardByte; };
    guards_intact_ =
        std::all_of(read.begin(), read.begin() + kDeviceGuard, is_guard) && std::all_of(read.end() - kDeviceGuard, read.end(), is_guard);
    std::memcpy(data(), read.data() + kDeviceGuard, bytes_);
  }

 private:
  static constexpr size_t kDeviceGuard = 256;  // keeps the alignment of blocks

  size_t bytes_, start_ = 0;
  std::vector<std::byte> memory_;
  std::shared_ptr<Storage> block_;
  bool guards_intact_ = true;
};

/// A node with separate types, to try formats.
struct Trial {
  Node node;
  Device* device;
  std::vector<TensorType> inputs, outputs;  // inputs by position; absent ones are not read
  KernelQuery query() const {
    OpContext context;
    context.attributes = node.attributes.get();
    for (size_t i = 0; i < inputs.size(); ++i) context.inputs.push_back(node.inputs[i] == kNoValue ? nullptr : &inputs[i]);
    for (const TensorType& type : outputs) context.outputs.push_back(&type);
    return {node, std::move(context), 2, device};
  }
};

Trial trial_of(const Graph& graph, const Node& node, Device& device) {
  Trial trial{node, &device, {}, {}};
  for (ValueId id : node.inputs) trial.inputs.push_back(id == kNoValue ? TensorType() : graph.type(id));
  for (ValueId id : node.outputs) trial.outputs.push_back(graph.type(id));
  return trial;
}

/// Makes activations of rank 4 and 5 channels_last; false if the operator's rule has no such form.
bool make_channels_last(const Graph& graph, Trial& trial) {
  const bool weight_gradient = trial.node.op->name.ends_with("conv2d_backward_weights");
  if (trial.node.op->layout.formats != FormatRule::kKeeps && !weight_gradient) return false;
  bool any = false;
  const auto change = [&](TensorType& type) {
    if (type.shape.rank() != 4 && type.shape.rank() != 5) return;
    type.format = MemoryFormat::channels_last_for_rank(type.shape.rank());
    any = true;
  };
  for (size_t i = 0; i < trial.inputs.size(); ++i) {
    const ValueId id = trial.node.inputs[i];
    if (id != kNoValue && graph.value(id).role != ValueRole::kParameter) change(trial.inputs[i]);
  }
  if (!weight_gradient) {
    for (TensorType& type : trial.outputs) change(type);
  }
  return any;
}

/// Whether the planner may give this output the memory of that input, as it does if the input has no later reader.
bool can_reuse(const Trial& trial, const InPlace& reuse) {
  const auto input = static_cast<size_t>(reuse.input), output = static_cast<size_t>(reuse.output);
  if (input >= trial.inputs.size() || output >= trial.outputs.size() || trial.node.inputs[input] == kNoValue) return false;
  if (std::count(trial.node.inputs.begin(), trial.node.inputs.end(), trial.node.inputs[input]) > 1) return false;
  return trial.inputs[input].bytes() == trial.outputs[output].bytes() && !trial.inputs[input].format.is_blocked();
}

/// Results of an operator on quantized values before rounding, in steps of the output's scale; empty for other operators.
std::vector<double> unrounded(const Trial& trial, const std::vector<const RefArray*>& inputs) {
  if (trial.node.attributes == nullptr) return {};
  const std::shared_ptr<Options> attributes = trial.node.attributes->clone();
  auto* output = dynamic_cast<QuantizedOutput*>(attributes.get());
  if (output == nullptr || output->output_dtype == DType::kF32) return {};
  output->output_dtype = DType::kF32;
  std::vector<RefArray> results{{trial.outputs[0].shape, std::vector<double>(static_cast<size_t>(trial.outputs[0].elements()))}};
  TensorType real = trial.outputs[0];
  real.dtype = DType::kF32;
  const KernelQuery query = trial.query();
  OpContext context = query.context;
  context.attributes = attributes.get();
  context.outputs[0] = &real;
  const Reference reference(*trial.node.op, attributes, context);
  RefCall call(attributes.get(), context, inputs, results);
  reference.run(call);
  for (double& real : results[0].v) real /= output->output_scale;
  return std::move(results[0].v);
}

/// Whether a kernel that computes in float32 may round this value either way: 256 levels, six roundings of 2^-24, so 1e-4 of a level.
bool near_a_tie(double level) { return std::abs(level - std::floor(level) - 0.5) <= 1e-4; }

/// Compares outputs with the reference's. Returns "" or a description of the difference.
std::string difference(const Trial& trial, const std::vector<const RefArray*>& inputs, const std::vector<Guarded*>& outputs,
                       const OpCase& c, double tolerance) {
  const KernelQuery query = trial.query();
  std::vector<RefArray> expected;
  for (const TensorType& type : trial.outputs) expected.push_back({type.shape, std::vector<double>(static_cast<size_t>(type.elements()))});
  const Reference reference(*trial.node.op, trial.node.attributes, query.context);
  RefCall call(trial.node.attributes.get(), query.context, inputs, expected);
  reference.run(call);
  const std::vector<double> levels = unrounded(trial, inputs);
  const bool ties = !levels.empty() && !c.exact_ties;
  for (size_t o = 0; o < outputs.size(); ++o) {
    const TensorType& type = trial.outputs[o];
    const RefArray got = read_array(type, outputs[o]->data());
    double largest = 0;
    for (double value : expected[o].v) largest = std::max(largest, std::isfinite(value) ? std::abs(value) : 0.0);
    for (int64_t i = 0; i < type.elements(); ++i) {
      const double want = expected[o][i];
      if (ties && std::abs(got[i] - want) == 1 && near_a_tie(levels[static_cast<size_t>(i)])) continue;
      const bool same = std::isnan(want)                                   ? std::isnan(got[i])
                        : !std::isfinite(want) || !is_floating(type.dtype) ? got[i] == want
                                                                           : std::abs(got[i] - want) <= tolerance * largest + 1e-30;
      if (!same)
        return cat("output ", o, " element ", i, " is ", got[i], ", the reference says ", want, " (largest ", largest, "), ", type.str());
    }
  }
  return "";
}

/// As the memory plan chooses them where no input has a later reader: of each output the first input that no other output has taken.
std::vector<InPlace> reuse_of_all(const Trial& trial) {
  std::vector<InPlace> chosen;
  const auto taken = [&](const InPlace& reuse) {
    return std::any_of(chosen.begin(), chosen.end(), [&](const InPlace& c) { return c.input == reuse.input || c.output == reuse.output; });
  };
  for (int o = 0; o < static_cast<int>(trial.outputs.size()); ++o) {
    for (const InPlace& reuse : trial.node.op->may_reuse)
      if (reuse.output == o && can_reuse(trial, reuse) && !taken(reuse)) chosen.push_back(reuse);
  }
  return chosen;
}

/// Runs the kernel, in place with each of `reused`. Returns "" or a description of the error.
std::string run_trial(Device& device, const Kernel& kernel, const Trial& trial, const std::map<ValueId, RefArray>& values, const OpCase& c,
                      double tolerance, std::span<const InPlace> reused = {}) {
  const KernelQuery query = trial.query();
  std::vector<RefArray> arrays(trial.inputs.size());
  std::vector<const RefArray*> reference_inputs;
  std::vector<std::unique_ptr<Guarded>> inputs, outputs;
  std::vector<const void*> in_addresses;
  std::vector<void*> out_addresses;
  std::vector<Guarded*> home;  // of each output: its own array, or the input's that it overwrites
  for (size_t i = 0; i < trial.inputs.size(); ++i) {
    inputs.push_back(nullptr);
    in_addresses.push_back(nullptr);
    reference_inputs.push_back(nullptr);
    if (trial.node.inputs[i] == kNoValue) continue;
    arrays[i] = values.at(trial.node.inputs[i]);
    reference_inputs.back() = &arrays[i];
    inputs.back() = std::make_unique<Guarded>(trial.inputs[i].bytes());
    write_array(trial.inputs[i], arrays[i], inputs.back()->data());
    in_addresses.back() = inputs.back()->on(device);
  }
  for (const TensorType& type : trial.outputs) {
    outputs.push_back(std::make_unique<Guarded>(type.bytes()));
    out_addresses.push_back(outputs.back()->on(device));
    home.push_back(outputs.back().get());
  }
  std::vector<bool> updated(inputs.size());
  for (const InPlace& update : trial.node.op->updates) {
    if (update.output >= static_cast<int>(outputs.size()) || update.input >= static_cast<int>(inputs.size()) ||
        !inputs[static_cast<size_t>(update.input)])
      continue;
    if (trial.outputs[static_cast<size_t>(update.output)].bytes() != trial.inputs[static_cast<size_t>(update.input)].bytes()) continue;
    home[static_cast<size_t>(update.output)] = inputs[static_cast<size_t>(update.input)].get();
    out_addresses[static_cast<size_t>(update.output)] = home[static_cast<size_t>(update.output)]->on(device);
    updated[static_cast<size_t>(update.input)] = true;
  }
  for (const InPlace& reuse : reused) {
    home[static_cast<size_t>(reuse.output)] = inputs[static_cast<size_t>(reuse.input)].get();
    out_addresses[static_cast<size_t>(reuse.output)] = home[static_cast<size_t>(reuse.output)]->on(device);
    updated[static_cast<size_t>(reuse.input)] = true;
  }
  std::vector<std::vector<std::byte>> before;
  for (const auto& input : inputs) before.push_back(input ? input->content() : std::vector<std::byte>());

  const std::unique_ptr<PreparedKernel> prepared = kernel.prepare(query);
  Guarded scratch(prepared->scratch_bytes());
  prepared->run(device.stream(), {in_addresses, out_addresses, prepared->scratch_bytes() == 0 ? nullptr : scratch.on(device)});
  for (const auto& input : inputs)
    if (input) input->take_back(device);
  for (const auto& output : outputs) output->take_back(device);
  scratch.take_back(device);

  if (!scratch.intact()) return "writes outside of its scratch memory";
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i]) continue;
    if (!inputs[i]->intact()) return cat("writes outside input ", i);
    if (!updated[i] && inputs[i]->content() != before[i]) return cat("changes input ", i);
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (!outputs[o]->intact()) return cat("writes outside output ", o);
  }
  return difference(trial, reference_inputs, home, c, tolerance);
}

}  // namespace

std::vector<std::string> kernel_failures(const Backend& backend, const OpCase& c, DType real, std::set<std::string>* tried) {
  std::vector<std::string> failures;
  const std::unique_ptr<CaseGraph> made = make_graph(c, real, true);
  std::map<ValueId, RefArray> values;
  if (tried == nullptr) values = interpret(made->graph, made->feeds, /*round=*/true);
  // The error of bf16 results is half a unit of 2^-8; twice that for kernels that also round an intermediate value.
  const double tolerance = real == DType::kBF16 ? 0x1p-7 : real == DType::kF16 ? std::max(0x1p-10, c.kernel_tolerance) : c.kernel_tolerance;
  for (const Node& node : made->graph.nodes()) {
    Trial contiguous = trial_of(made->graph, node, backend.device()), last = contiguous;
    std::vector<Trial> trials{contiguous};
    if (make_channels_last(made->graph, last)) trials.push_back(last);
    for (const Kernel* kernel : backend.kernels(*node.op)) {
      for (const Trial& plain : trials) {
        std::vector<Trial> forms{plain};
        for (size_t i = 0; kernel->preferred_format != nullptr && i < plain.inputs.size(); ++i) {
          const ValueId id = node.inputs[i];
          if (id == kNoValue || made->graph.value(id).role != ValueRole::kParameter || plain.inputs[i].shape.rank() < 2) continue;
          if (!kernel->supports(plain.query())) continue;
          forms.push_back(plain);
          forms.back().inputs[i].format = kernel->preferred_format(plain.query(), static_cast<int>(i));
        }
        for (size_t o = 0; kernel->preferred_output_format != nullptr && o < plain.outputs.size(); ++o) {
          if (!kernel->supports(plain.query())) continue;
          forms.push_back(plain);
          forms.back().outputs[o].format = kernel->preferred_output_format(plain.query(), static_cast<int>(o));
        }
        for (const Trial& form : forms) {
          if (!kernel->supports(form.query())) continue;
          if (tried != nullptr) {
            tried->insert(cat(kernel->algorithm, " of ", node.op->name));
            continue;
          }
          std::string formats;
          for (size_t i = 0; i < form.inputs.size(); ++i) formats += node.inputs[i] == kNoValue ? " -" : " " + form.inputs[i].str();
          for (const TensorType& type : form.outputs) formats += " -> " + type.str();
          std::string problem = run_trial(backend.device(), *kernel, form, values, c, tolerance);
          for (const InPlace& reuse : node.op->may_reuse) {
            if (!problem.empty() || !can_reuse(form, reuse)) continue;
            problem = run_trial(backend.device(), *kernel, form, values, c, tolerance, std::span(&reuse, 1));
            if (!problem.empty()) problem += cat(", in the memory of input ", reuse.input);
          }
          if (const std::vector<InPlace> all = reuse_of_all(form); problem.empty() && all.size() > 1) {
            problem = run_trial(backend.device(), *kernel, form, values, c, tolerance, all);
            if (!problem.empty()) problem += ", in the memory of several inputs";
          }
          if (!problem.empty())
            failures.push_back(cat(c.name, ": kernel ", kernel->algorithm, " of ", node.op->name, ":", formats, ": ", problem));
        }
      }
    }
  }
  return failures;
}

}  // namespace galley::test
