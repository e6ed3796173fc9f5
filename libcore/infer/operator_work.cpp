#include "libcore/infer/operator_work.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "libcore/base/error.h"
#include "libcore/base/parallel.h"
#include "libcore/base/philox.h"
#include "libcore/base/units.h"
#include "libcore/ops/quantize.h"
#include "libcore/ops/registry.h"
#include "libcore/recipe/schema.h"
#include "libcore/recipe/yaml_tree.h"
#include "libcore/runtime/engine.h"

namespace galley {
namespace {

struct OperatorCase {
  std::string op;
  std::vector<std::optional<TensorType>> inputs;
  std::string attributes;  // YAML in flow style without its braces
};

[[noreturn]] void bad_case(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::kUsage, cat("the case '", text, "': ", why))
      .suggest("e.g. relu:16x64x56x56, conv2d:mb16ic64ih56oc64kh3, conv2d:16x64x56x56+64x64x3x3:padding=1,stride=2");
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts{""};
  int depth = 0;
  for (char c : text) {
    depth += (c == '[') - (c == ']');
    if (c == at && depth == 0) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

TensorType parse_shape(const std::string& whole, std::string text) {
  TensorType type;
  if (const size_t at = text.find('@'); at != std::string::npos) {
    const std::string dtype = text.substr(at + 1);
    constexpr std::array kDTypes{DType::kF32, DType::kI64, DType::kU8, DType::kI8, DType::kF8E4M3, DType::kBool};
    const auto found = std::find_if(kDTypes.begin(), kDTypes.end(), [&](DType known) { return dtype_name(known) == dtype; });
    if (found == kDTypes.end())
      bad_case(whole, cat("'", dtype, "' is not a dtype of operator cases; write f32, i64, u8, i8, f8_e4m3 or bool"));
    type.dtype = *found;
    text.resize(at);
  }
  if (text == "scalar") return type;
  for (const std::string& size : split(text, 'x')) {
    if (size.empty() || size.find_first_not_of("0123456789") != std::string::npos)
      bad_case(whole, cat("'", text, "' is not a shape such as 16x64"));
    type.shape.push_back(parse_count(size));
  }
  return type;
}

/// mb16ic64ih56 -> {mb: 16, ic: 64, ih: 56}; empty if the text does not have this form.
std::map<std::string, int64_t> parse_letters(const std::string& text) {
  std::map<std::string, int64_t> sizes;
  size_t at = 0;
  while (at < text.size()) {
    size_t letters = at;
    while (letters < text.size() && text[letters] >= 'a' && text[letters] <= 'z') ++letters;
    size_t digits = letters;
    while (digits < text.size() && text[digits] >= '0' && text[digits] <= '9') ++digits;
    if (letters == at || digits == letters) return {};
    sizes[text.substr(at, letters - at)] = parse_count(text.substr(letters, digits - letters));
    at = digits;
  }
  return sizes;
}

/// Reads named sizes with their defaults.
class LetterSizes {
 public:
  LetterSizes(std::string whole, std::map<std::string, int64_t> sizes) : whole_(std::move(whole)), sizes_(std::move(sizes)) {}

  void check(const OpDef& op) const {
    static const std::set<std::string> matrix{"mb", "ic", "oc"},
        convolution{"mb", "ic", "ih", "iw", "oc", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw", "g"};
    for (const auto& [name, value] : sizes_) {
      if ((op.letters == CaseLetters::kMatrix ? matrix : convolution).count(name) == 0)
        bad_case(whole_, cat("'", name, "' is not a size of ", op.name));
    }
  }
  int64_t need(const char* name) const {
    const auto found = sizes_.find(name);
    if (found == sizes_.end()) bad_case(whole_, cat("the size '", name, "' is missing"));
    return found->second;
  }
  int64_t get(const char* name, int64_t fallback) const {
    const auto found = sizes_.find(name);
    return found == sizes_.end() ? fallback : found->second;
  }

 private:
  std::string whole_;
  std::map<std::string, int64_t> sizes_;
};

/// Shapes of a layer and of the operands of its gradients, and the attributes that follow from the sizes.
struct LayerShapes {
  Shape x, weight, y;
  std::map<std::string, std::string> attributes;
};

LayerShapes convolution_of(const LetterSizes& sizes) {
  const int64_t batch = sizes.get("mb", 1), in = sizes.need("ic"), out = sizes.need("oc");
  const int64_t height = sizes.need("ih"), width = sizes.get("iw", height), kh = sizes.need("kh"), kw = sizes.get("kw", kh),
                groups = sizes.get("g", 1);
  const int64_t sh = sizes.get("sh", 1), sw = sizes.get("sw", sh), dh = sizes.get("dh", 1), dw = sizes.get("dw", dh);
  const int64_t ph = sizes.get("ph", (kh - 1) * dh / 2), pw = sizes.get("pw", (kw - 1) * dw / 2);
  LayerShapes layer{.x = {batch, in, height, width}, .weight = {out, in / groups, kh, kw}};
  layer.y = {batch, out, (height + 2 * ph - dh * (kh - 1) - 1) / sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) / sw + 1};
  const auto two = [](int64_t a, int64_t b) { return cat("[", a, ", ", b, "]"); };
  layer.attributes = {{"stride", two(sh, sw)}, {"padding", two(ph, pw)},           {"dilation", two(dh, dw)},
                      {"groups", cat(groups)}, {"input_size", two(height, width)}, {"kernel_size", two(kh, kw)}};
  return layer;
}

LayerShapes matrix_of(const LetterSizes& sizes) {
  const int64_t rows = sizes.get("mb", 1), in = sizes.need("ic"), out = sizes.need("oc");
  return {.x = {rows, in}, .weight = {out, in}, .y = {rows, out}};
}

/// Collects the names of an operator's options.
class OptionNames final : public OptionVisitor {
 public:
  std::vector<std::string> names;
  void option(const OptionInfo& info, bool&) override { names.emplace_back(info.name); }
  void option(const OptionInfo& info, int64_t&) override { names.emplace_back(info.name); }
  void option(const OptionInfo& info, double&) override { names.emplace_back(info.name); }
  void option(const OptionInfo& info, std::string&) override { names.emplace_back(info.name); }
  void option(const OptionInfo& info, std::vector<int64_t>&) override { names.emplace_back(info.name); }
  void option(const OptionInfo& info, std::vector<double>&) override { names.emplace_back(info.name); }
  void option(const OptionInfo& info, std::vector<std::string>&) override { names.emplace_back(info.name); }
  void choice(const OptionInfo& info, int&, std::span<const std::string_view>) override { names.emplace_back(info.name); }
};

/// Fills in the required inputs for these sizes: x, a weight, the gradient of the result, or a vector with one element per output channel.
/// Integer operators read u8 and i8 and write u8.
void from_letters(const OpDef& op, OperatorCase& result, const LetterSizes& sizes) {
  sizes.check(op);
  const LayerShapes layer = op.letters == CaseLetters::kMatrix ? matrix_of(sizes) : convolution_of(sizes);
  const bool integers = op.integer == IntegerRole::kComputes;
  for (const Port& port : op.inputs) {
    if (port.optional) break;
    TensorType type;
    if (port.kind == PortKind::kWeight) {
      type.shape = layer.weight;
      if (integers) type.dtype = DType::kI8;
    } else if (port.kind == PortKind::kStatistics) {
      type.shape = Shape{layer.weight[0]};
    } else {
      type.shape = port.name == "grad" ? layer.y : layer.x;
      if (integers) type.dtype = DType::kU8;
    }
    result.inputs.emplace_back(type);
  }
  OptionNames options;
  op.make_attrs()->options(options);
  const auto add = [&](const std::string& name, const std::string& value) {
    result.attributes += cat(result.attributes.empty() ? "" : ", ", name, ": ", value);
  };
  for (const std::string& name : options.names) {
    if (const auto found = layer.attributes.find(name); found != layer.attributes.end()) add(name, found->second);
    if (integers && name == "output_dtype") add(name, "u8");
  }
}

/// Checks that all required inputs are given, and not more than the operator accepts.
void check_inputs(const std::string& whole, const OperatorCase& parsed) {
  const OpDef& op = find_op(parsed.op);
  std::string all;
  for (const Port& port : op.inputs) all += cat(all.empty() ? "" : " + ", port.name, port.optional ? "?" : port.variadic ? "*" : "");
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Port& port = op.inputs[i];
    if (port.optional || port.variadic) continue;
    if (i >= parsed.inputs.size() || !parsed.inputs[i])
      bad_case(whole, cat("the shape of '", port.name, "' is missing: ", op.name, " takes ", all));
  }
  const bool any_number = !op.inputs.empty() && op.inputs.back().variadic;
  if (!any_number && parsed.inputs.size() > op.inputs.size())
    bad_case(whole, cat("there are ", parsed.inputs.size(), " shapes, but ", op.name, " takes ", all.empty() ? "none" : all));
}

OperatorCase parse_case(const std::string& text) {
  open_backend();  // also registers operators of the back end
  const std::vector<std::string> parts = split(text, ':');
  OperatorCase result{.op = parts[0], .inputs = {}, .attributes = ""};
  if (find_op_or_null(result.op) == nullptr) {
    std::vector<std::string> names;
    for (const OpDef* op : all_ops()) names.emplace_back(op->name);
    const std::string near = nearest(result.op, names);
    throw Error(ErrorCode::kUsage, cat("there is no operator '", result.op, "'"))
        .suggest(near.empty() ? "galley-benchmark op --dry-run lists all operators" : cat("did you mean '", near, "'?"));
  }
  if (parts.size() < 2 || parts.size() > 3) bad_case(text, "it must have the form NAME:SHAPES or NAME:SHAPES:ATTRIBUTES");
  const OpDef& op = find_op(result.op);
  if (const auto sizes = parse_letters(parts[1]); op.letters != CaseLetters::kNone && !sizes.empty()) {
    from_letters(op, result, {text, sizes});
  } else {
    for (const std::string& shape : split(parts[1], '+')) {
      result.inputs.push_back(shape == "-" ? std::nullopt : std::optional(parse_shape(text, shape)));
    }
  }
  if (parts.size() == 3) {
    for (const std::string& item : split(parts[2], ',')) {
      const size_t equals = item.find('=');
      if (equals == std::string::npos) bad_case(text, cat("'", item, "' must have the form NAME=VALUE"));
      result.attributes += cat(result.attributes.empty() ? "" : ", ", item.substr(0, equals), ": ", item.substr(equals + 1));
    }
  }
  check_inputs(text, result);
  return result;
}

/// The options of the case; null if the operator has none.
std::shared_ptr<Options> attributes_of(const OperatorCase& parsed, const std::string& text) {
  const OpDef& op = find_op(parsed.op);
  std::shared_ptr<Options> attributes = op.make_attrs != nullptr ? op.make_attrs() : nullptr;
  if (!parsed.attributes.empty()) {
    if (attributes == nullptr) bad_case(text, cat(parsed.op, " has no attributes"));
    read_options(parse_yaml(std::make_shared<TextSource>(TextSource{"the case " + text, "{" + parsed.attributes + "}"})), *attributes);
  }
  if (auto* lookup = dynamic_cast<LookupAttrs*>(attributes.get()); lookup != nullptr && lookup->table.empty()) {
    for (int64_t q = 0; q < 256; ++q) lookup->table.push_back(q);  // the time does not depend on the table
  }
  return attributes;
}

/// A graph with one node.
Graph graph_of(const OperatorCase& parsed, const std::string& text) {
  const OpDef& op = find_op(parsed.op);
  const std::shared_ptr<Options> attributes = attributes_of(parsed, text);
  Graph graph;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < parsed.inputs.size(); ++i) {
    if (!parsed.inputs[i]) {
      inputs.push_back(kNoValue);
      continue;
    }
    // Weights are parameters if the kernel chooses their format; state that is updated must be a parameter.
    const bool updated =
        std::any_of(op.updates.begin(), op.updates.end(), [&](const InPlace& update) { return update.input == static_cast<int>(i); });
    const bool weight = op.work == WorkClass::kProduct && op.has_weight_format(i);
    inputs.push_back(
        graph.add_input(cat("in", i), *parsed.inputs[i],
                        updated  ? ValueRole::kState
                        : weight ? ValueRole::kParameter
                                 : ValueRole::kInput)
            .id());
  }
  const std::vector<Value> outputs = graph.add_node(op, attributes, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (std::none_of(op.updates.begin(), op.updates.end(), [&](const InPlace& update) { return update.output == static_cast<int>(i); }))
      graph.add_output(cat("out", i), outputs[i]);
  }
  return graph;
}

struct OperatorParts {
  OperatorParts(std::string_view device, bool winograd)
      : engine(open_backend(device, {.memory_format = LayoutMode::kChannelsLast, .winograd = winograd})) {}
  Engine engine;
  std::unique_ptr<Execution> execution;
};

std::shared_ptr<const Program> compile_case(Engine& engine, const OperatorCase& parsed, const std::string& text) {
  return engine.program(
      {.mode = "operator", .variant = text}, "a single operator", [&] { return graph_of(parsed, text); }, ParameterFormats::kLead);
}

/// Indices are smaller than the number of rows or classes of all default cases, 8-bit ones (positions in a pooling window) below two;
/// counts and random keys are 0; quantized values cover their range.
Tensor random_input(const TensorType& type, PortKind kind) {
  const int64_t below = kind == PortKind::kScalar ? 1 : 1000, levels = kind == PortKind::kIndex ? 2 : 256;
  Tensor tensor(type.dtype, type.shape);
  RandomStream stream(0, "operator input", static_cast<uint64_t>(type.shape.elements()));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    switch (type.dtype) {
      case DType::kF32:
        tensor.data_as<float>()[i] = static_cast<float>(0.1 + 0.9 * stream.uniform());
        break;  // positive, so that logarithms and roots are defined
      case DType::kI64: tensor.data_as<int64_t>()[i] = static_cast<int64_t>(stream.below(static_cast<uint64_t>(below))); break;
      case DType::kI8: tensor.data_as<int8_t>()[i] = static_cast<int8_t>(static_cast<int64_t>(stream.below(255)) - 127); break;
      case DType::kU8: tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>(stream.below(static_cast<uint64_t>(levels))); break;
      case DType::kF8E4M3: tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>(stream.below(127)); break;  // 127 is NaN
      default: tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>(stream.below(2)); break;
    }
  }
  return tensor;
}

/// A case of equal shapes if `infer` of the operator accepts it, else "".
std::string plain_case(const OpDef& op) {
  size_t inputs = 0;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.inputs[i].optional) inputs = i + 1;
  }
  std::string text = cat(op.name, ":");
  for (size_t i = 0; i < inputs; ++i) text += cat(i == 0 ? "" : "+", op.inputs[i].optional ? "-" : "16x64x56x56");
  try {
    OperatorParts parts(backend_rows().front().name, /*winograd=*/true);
    compile_case(parts.engine, parse_case(text), text);
  } catch (const Error&) {
    return "";  // the operator needs other shapes; a test ensures that such operators list their cases
  }
  return text;
}

}  // namespace

std::vector<std::string> operator_cases(const std::string& name) {
  open_backend();  // also registers operators of the back end
  std::vector<std::string> cases;
  for (const OpDef* op : all_ops()) {
    if (!name.empty() && op->name != name) continue;
    if (op->view() || op->inputs.empty()) continue;  // no computation
    if (!op->cases.empty()) {
      cases.insert(cases.end(), op->cases.begin(), op->cases.end());
    } else if (std::string text = plain_case(*op); !text.empty()) {
      cases.push_back(std::move(text));
    }
  }
  if (cases.empty()) parse_case(name);  // throws the error for an unknown operator
  if (cases.empty()) bad_case(name, "this operator has no default case; write its shapes");
  return cases;
}

BenchmarkWork operator_work(const std::string& text, bool winograd, std::string_view device) {
  const OperatorCase parsed = parse_case(text);
  const OpDef& op = find_op(parsed.op);
  const auto parts = std::make_shared<OperatorParts>(device, winograd);
  const std::shared_ptr<const Program> program = compile_case(parts->engine, parsed, text);
  parts->execution = parts->engine.bind(program);
  ParameterStore& store = parts->engine.store();
  for (size_t i = 0; i < parsed.inputs.size(); ++i) {
    if (!parsed.inputs[i]) continue;
    const std::string name = cat("in", i);
    const Tensor values = random_input(*parsed.inputs[i], op.input_port(i).kind);
    if (store.has(name)) {
      store.set(name, values);
    } else {
      parts->execution->feed(name, values);
    }
  }
  BenchmarkWork work;
  for (const Node& node : program->graph().nodes()) {
    // The back end may have replaced the operator by one of its operators.
    if (node.op != &op && !(node.op->made_by_rewrite && node.op->work == WorkClass::kProduct)) continue;
    const Cost cost = cost_of(*node.op, context_of(program->graph(), node));
    work.row.flops = cost.flops;
    work.row.executed.add(cost);
    work.row.bytes = cost.bytes_read + cost.bytes_written;
  }
  work.row.recipe = "op";
  work.row.what = text;
  work.row.device = device;
  work.row.threads = compute_threads();
  work.run = [execution = parts->execution.get()] {
    execution->run();
    execution->wait();
  };
  work.parts = parts;
  work.run();
  return work;
}

}  // namespace galley
