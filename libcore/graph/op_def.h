#pragma once
// OpDef: everything that the rest of the program needs to know about an operator, in one entry.

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/options.h"
#include "libcore/graph/tensor_type.h"

namespace galley {

class Expansion;        // ops/expansion.h
class GradientBuilder;  // ops/gradient.h
class IntegerBuilder;   // ops/integer_builder.h
class Value;            // graph/graph.h

/// What an input or output of an operator is for.
enum class PortKind : uint8_t {
  kActivation,  // data that flows through the model, and its gradients
  kWeight,      // an operand of a product, or its gradient: the kernel may prefer a special memory format
  kStatistics,  // vectors: biases, scales, means, variances; they stay in f32
  kState,       // a persistent array that an update writes: parameters, moments, running statistics, observed ranges
  kIndex,       // integers that select: classes, positions, tokens
  kScalar,      // one value that is fed or computed: learning rate, step, random key
};

/// An input or output. In an operator's entry it is written by its name: "x" is required, "x?" is optional, "x*" (the last port only)
/// stands for any number of inputs.
struct Port {
  std::string_view name;  // without the mark
  PortKind kind = PortKind::kActivation;
  bool optional = false, variadic = false;

  constexpr Port(std::string_view text, PortKind port_kind = PortKind::kActivation)
      : name(text), kind(port_kind), optional(text.ends_with('?')), variadic(text.ends_with('*')) {
    if (optional || variadic) name.remove_suffix(1);
  }
  constexpr Port(const char* text) : Port(std::string_view(text)) {}
  static constexpr Port weight(std::string_view text) { return {text, PortKind::kWeight}; }
  static constexpr Port statistics(std::string_view text) { return {text, PortKind::kStatistics}; }
  static constexpr Port state(std::string_view text) { return {text, PortKind::kState}; }
  static constexpr Port index(std::string_view text) { return {text, PortKind::kIndex}; }
  static constexpr Port scalar(std::string_view text) { return {text, PortKind::kScalar}; }
};

/// Attributes and types of one application of an operator. An optional input that is not given is nullptr.
struct OpContext {
  const Options* attributes = nullptr;
  std::vector<const TensorType*> inputs;
  std::vector<const TensorType*> outputs;  // empty while `infer` runs

  template <class T>
  const T& attrs() const {
    const auto* typed = dynamic_cast<const T*>(attributes);
    GALLEY_ASSERT(typed != nullptr);
    return *typed;
  }
  bool has(int i) const { return i < static_cast<int>(inputs.size()) && inputs[static_cast<size_t>(i)] != nullptr; }
  const TensorType& in(int i) const {
    GALLEY_ASSERT(has(i));
    return *inputs[static_cast<size_t>(i)];
  }
  const TensorType& out(int i) const { return *outputs[static_cast<size_t>(i)]; }
};

/// Work of one execution. A multiply-add counts two flops; each operand is read or written once.
struct Cost {
  double flops = 0;
  double bytes_read = 0;
  double bytes_written = 0;
  DType dtype = DType::kF32;  // of the products: f32, bf16, or i8 for 8-bit integers
  double saved_flops = 0;     // part of `flops` that a faster algorithm does not execute (negative: it executes more)
  double executed_flops() const { return flops - saved_flops; }
};

/// What bounds an operator's time. Passes decide by it what to keep, to fuse and to count.
enum class WorkClass : uint8_t {
  kMemory,   // reads and writes values: element-wise functions, norms, pooling, moves
  kProduct,  // multiplies by weights or by other activations: convolutions, matrix products, recurrent layers, attention
  kView,     // output 0 is the memory of input 0 with another shape: nothing runs
  kState,    // updates persistent arrays
};

/// Memory formats of values of rank 4 and 5 (others are always contiguous).
enum class FormatRule : uint8_t {
  kKeeps,       // inputs and outputs of rank 4 and 5, except weights, share one format, contiguous or channels_last: element-wise,
                // pooling, convolution
  kContiguous,  // contiguous inputs and outputs
  kExplicit,    // inputs may have any format; infer sets the formats of the outputs
  kReorder,     // as kExplicit, and output 0 has the values of input 0: nothing runs if both formats store them in the same order
};
/// Memory formats of weights (ports of kind kWeight).
enum class WeightFormat : uint8_t {
  kContiguous,       // kernels read and write weights in contiguous format
  kFollows,          // a weight is reordered to the format that the kernel prefers; a weight gradient has the format of its parameter
  kLeads,            // as kFollows, and a parameter is stored in the format that the kernel of this operator prefers
  kLeadsInference,   // as kLeads, but contiguous in graphs with a backward pass, whose gradients are products with the contiguous weight
  kLeadsParameters,  // as kLeads, but a weight that the graph computes stays contiguous: the kernel packs it in each run, at the cost of
                     // a reorder
};
struct LayoutRule {
  FormatRule formats = FormatRule::kKeeps;
  bool prefers_channels_last = false;  // several times faster in channels_last: memory_format auto then chooses that format
  WeightFormat weights = WeightFormat::kContiguous;
  /// For a kExplicit operator that can write output 0 in any format: its attributes with that format. nullptr: the format is fixed.
  std::shared_ptr<const Options> (*with_format)(const Options& attributes, const MemoryFormat& format) = nullptr;
};

/// How assign_precision treats an operator.
enum class PrecisionRule {
  kFollow,       // computes in the dtype of its activations
  kLow,          // in low precision: activations and weights of rank 2 and more; biases stay f32 unless the policy names them
  kActivations,  // activations keep their dtype, weights and statistics stay f32: norms
  kKeepF32,      // in f32
};

/// How quantization treats an operator. All rules but kFloat have an integer form: see OpDef::integer_form.
enum class QuantizeRule {
  kFloat,        // stays in float
  kProduct,      // a layer: a product with a constant weight, stored as integers, with bias and residual: conv2d, linear
  kScale,        // a layer: a scale and a shift for each channel (OpDef::channel_scale), on integers if its neighbors are:
                 // batch_norm_inference
  kRecurrent,    // two layers, a product with each of its two weights; its outputs are never integers: lstm, gru, rnn
  kCompute,      // computes on integers, and its output has scale and zero point of its own: add, mul, average pools, mean over pixels
  kJoin,         // as kCompute, and inputs take over the output's scale where that costs little, so that integers are copied: concat
  kPassThrough,  // moves integers; the output has the input's scale and zero point: max pool, view, pad (by the zero point), nearest resize
  kTable,        // element-wise function of one input: a table of 256 entries
};

/// The part of an operator in a quantized graph.
enum class IntegerRole : uint8_t {
  kNone,         // works on real values, or on integers that are not quantized values (indices, counts)
  kQuantizes,    // turns real values into integers
  kDequantizes,  // turns integers into real values
  kComputes,     // reads integers that stand for real values
};

/// Which letters OpDef::cases may use for sizes: "mb16ic64ih56oc64kh3".
enum class CaseLetters : uint8_t {
  kNone,
  kConvolution,  // mb batch, ic oc channels, ih iw image, kh kw kernel, sh sw stride, ph pw padding, dh dw dilation, g groups
  kMatrix,       // mb rows, ic and oc features
};

/// Output `output` overwrites the memory of persistent input `input` (an update of state in place).
struct InPlace {
  int output;
  int input;
};

/// Legal indices: 0 to count - 1, and `ignored`.
struct IndexRange {
  int64_t count = 0;
  std::string_view of;  // what they select, for messages: "rows", "classes"
  std::optional<int64_t> ignored;
};

/// One operator. The table in ops/registry.cpp registers it.
struct OpDef {
  std::string_view name;
  std::string_view doc;  // one line, with the source of the formula where it is not common knowledge
  std::vector<Port> inputs;
  std::vector<Port> outputs;
  std::unique_ptr<Options> (*make_attrs)() = nullptr;  // defaults; nullptr: no attributes
  /// All argument checks, and the types of the outputs (formats are filled in by `layout`, unless kExplicit).
  std::vector<TensorType> (*infer)(const OpContext&) = nullptr;
  /// Emits the backward nodes: reads g.in, g.out and g.grad, calls g.set. nullptr: see no_gradient.
  void (*gradient)(GradientBuilder&) = nullptr;
  std::string_view no_gradient = "";         // why there is none
  Cost (*cost)(const OpContext&) = nullptr;  // nullptr: no flops, each operand once
  /// What a rank holds of the outputs, from what it holds of the inputs. nullptr: what is computed from replicated values is replicated,
  /// other values are the rank's own; views and updates of state keep ranges.
  Placement (*place)(const OpDef&, const OpContext&) = nullptr;
  WorkClass work = WorkClass::kMemory;
  LayoutRule layout = {};
  PrecisionRule precision = PrecisionRule::kFollow;
  QuantizeRule quantize = QuantizeRule::kFloat;
  std::vector<InPlace> updates = {};    // state written in place
  int gate = -1;                        // an optional bool [] input: if it is false, the states of `updates` keep their values; -1: none
  std::vector<InPlace> may_reuse = {};  // the output may take the memory of an input that is not read later, if sizes agree
  bool stops_gradient = false;          // its outputs are constants for differentiation: observers
  bool has_effect = false;              // never removed, even if its outputs are unused
  /// For a composite: emits the operators that it consists of into the caller's graph. nullptr: a primitive.
  void (*definition)(Expansion&) = nullptr;
  /// Does `quantize` apply with these types and attributes? nullptr: always. passes/integer_domain.h checks constant operands and unused
  /// outputs.
  bool (*quantizable)(const OpContext&) = nullptr;
  /// Emits the operator on integers that replaces it if the ranges of activations are known before the run (static, QAT). nullptr: the
  /// operator itself (kPassThrough), a look-up (kTable), none (others).
  void (*integer_form)(IntegerBuilder&) = nullptr;
  /// The same if activations are quantized by the range of each batch (dynamic). nullptr: none.
  void (*dynamic_form)(IntegerBuilder&) = nullptr;
  /// The same for a layer whose weight and activations are stored in f8_e4m3, with a real result. nullptr: none.
  void (*f8_form)(IntegerBuilder&) = nullptr;
  /// For kScale, from constant inputs in float: set(0, scale of each channel), set(1, shift of each channel).
  void (*channel_scale)(IntegerBuilder&) = nullptr;
  /// What the values of input `indices` select from; nullptr: any value is legal. Runs on devices check arrays of indices when they are
  /// fed, because kernels there can throw no errors.
  IndexRange (*index_range)(const OpContext&) = nullptr;
  int indices = -1;
  IntegerRole integer = IntegerRole::kNone;
  /// Does it multiply 8-bit values of which two products may exceed 16 bits, so that quantize.saturation could make it faster?
  /// nullptr: no.
  bool (*exact_products)(const OpContext&) = nullptr;
  bool made_by_rewrite = false;      // only a back end's rewrite creates it: the definition is the sub-graph that it replaces
  std::string_view variant_of = "";  // the operator whose result it computes in another way; reports and recipes use that name
  bool named_by_parts = false;  // versions before 2026-11-25 computed it by several operators; their calibration files name those values
  std::vector<std::string_view> cases =
      {};  // usual sizes, in the grammar of `galley-benchmark op`; empty: inputs of equal shapes, where infer takes them
  CaseLetters letters = CaseLetters::kNone;

  bool view() const { return work == WorkClass::kView; }
  /// Has a definition in terms of other operators.
  bool composite() const { return definition != nullptr; }
  /// The port of input i. All inputs from the last port on belong to that port if it is variadic.
  const Port& input_port(size_t i) const { return inputs[std::min(i, inputs.size() - 1)]; }
  /// May kernels prefer a special format for input i?
  bool has_weight_format(size_t i) const { return layout.weights != WeightFormat::kContiguous && input_port(i).kind == PortKind::kWeight; }
};

/// The operator of that name; throws InternalError where there is none (installed by ops/registry.cpp).
const OpDef& find_op(std::string_view name);
/// Like find_op, nullptr where there is none.
const OpDef* find_op_or_null(std::string_view name);
/// The operator of which this one is a variant, or itself.
const OpDef& family_of(const OpDef& op);
/// All operators, in the order of their registration.
std::vector<const OpDef*> all_ops();
/// Adds operators: those of ops/registry.cpp (through ensure_ops_registered in ops/registry.h), and those of back ends. Thread-safe.
void register_ops(std::span<const OpDef* const> ops);

/// A rule for OpDef::place: the weakest placement of an input. Of operators that compute each element from those at its place, or that move
/// elements. The gate of an update does not count: where it differs between ranks, a loss is not finite and the job ends.
Placement keeps_ranges(const OpDef& op, const OpContext& context);
/// The placement of all outputs of a node: by OpDef::place, or by the default rule.
Placement placement_of(const OpDef& op, const OpContext& context);

/// Cost of a node with these types: by OpDef::cost, or by the default rule.
Cost cost_of(const OpDef& op, const OpContext& context);

}  // namespace galley
