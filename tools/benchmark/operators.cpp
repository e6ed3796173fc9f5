// Single operators: NAME:SHAPES[:ATTRIBUTES], e.g. relu:16x64x56x56, matmul:64x512+512x256, conv2d:16x64x56x56+64x64x3x3:padding=1.
// Shapes are of the inputs, joined by +; -, an optional input left out; @i64 behind a shape, integers. Convolutions and linear layers also
// take sizes by letters: conv2d:mb16ic64ih56oc64kh3 (mb batch, ic oc channels, ih iw image, kh kw kernel, sh sw stride, ph pw padding
// (default (k-1)/2), dh dw dilation, g groups), linear:mb16ic512oc1000; quantized_conv2d and quantized_linear likewise, of u8 and i8. Images are
// channels_last.
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
#include "libcore/runtime/compile.h"
#include "libcore/runtime/execution.h"
#include "tools/benchmark/candidate.h"

namespace galley::tools {
namespace {

struct OperatorCase {
  std::string op;
  std::vector<std::optional<TensorType>> inputs;
  std::string attributes;  // YAML in flow style without its braces
};

[[noreturn]] void bad_case(const std::string& text, const std::string& why) {
  throw Error(ErrorCode::kUsage, cat("the case '", text, "': ", why)).suggest("e.g. relu:16x64x56x56, conv2d:mb16ic64ih56oc64kh3, conv2d:16x64x56x56+64x64x3x3:padding=1,stride=2");
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
    const std::array<std::pair<std::string_view, DType>, 5> dtypes{{{"f32", DType::kF32}, {"i64", DType::kI64}, {"u8", DType::kU8}, {"i8", DType::kI8}, {"bool", DType::kBool}}};
    const auto found = std::find_if(dtypes.begin(), dtypes.end(), [&](const auto& item) { return item.first == dtype; });
    if (found == dtypes.end()) bad_case(whole, cat("'", dtype, "' is no dtype here: f32, i64, u8, i8 or bool"));
    type.dtype = found->second;
    text.resize(at);
  }
  if (text == "scalar") return type;
  for (const std::string& size : split(text, 'x')) {
    if (size.empty() || size.find_first_not_of("0123456789") != std::string::npos) bad_case(whole, cat("'", text, "' is no shape"));
    type.shape.push_back(parse_count(size));
  }
  return type;
}

/// mb16ic64ih56 -> {mb: 16, ic: 64, ih: 56}; empty where the text is not of that kind.
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

void from_letters(const std::string& whole, OperatorCase& result, std::map<std::string, int64_t> sizes) {
  const bool linear = result.op.ends_with("linear"), quantized = result.op.starts_with("quantized");
  const std::set<std::string> known = linear ? std::set<std::string>{"mb", "ic", "oc"}
                                             : std::set<std::string>{"mb", "ic", "ih", "iw", "oc", "kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw", "g"};
  for (const auto& [name, value] : sizes) {
    if (known.count(name) == 0) bad_case(whole, cat("'", name, "' is no size of ", result.op));
  }
  const auto need = [&](const char* name) {
    if (sizes.count(name) == 0) bad_case(whole, cat("the size '", name, "' is missing"));
    return sizes[name];
  };
  const auto or_else = [&](const char* name, int64_t fallback) { return sizes.count(name) == 0 ? fallback : sizes[name]; };
  const int64_t batch = or_else("mb", 1), in = need("ic"), out = need("oc");
  const auto f32 = [](Shape shape) {
    TensorType type;
    type.shape = std::move(shape);
    return type;
  };
  /// x u8, weight i8, their scale, and a result of u8.
  const auto quantize = [&](TensorType x, TensorType weight) {
    x.dtype = DType::kU8;
    weight.dtype = DType::kI8;
    result.inputs = {x, weight, f32({out})};
    result.attributes += cat(result.attributes.empty() ? "" : ", ", "output_dtype: u8");
  };
  if (linear) {
    result.inputs = {f32({batch, in}), f32({out, in})};
    if (quantized) quantize(f32({batch, in}), f32({out, in}));
    return;
  }
  const int64_t height = need("ih"), width = or_else("iw", height), kh = need("kh"), kw = or_else("kw", kh), groups = or_else("g", 1);
  const int64_t sh = or_else("sh", 1), sw = or_else("sw", sh), dh = or_else("dh", 1), dw = or_else("dw", dh), ph = or_else("ph", (kh - 1) * dh / 2), pw = or_else("pw", (kw - 1) * dw / 2);
  const TensorType x = f32({batch, in, height, width}), w = f32({out, in / groups, kh, kw});
  const TensorType y = f32({batch, out, (height + 2 * ph - dh * (kh - 1) - 1) / sh + 1, (width + 2 * pw - dw * (kw - 1) - 1) / sw + 1});
  result.attributes = cat("stride: [", sh, ", ", sw, "], padding: [", ph, ", ", pw, "], dilation: [", dh, ", ", dw, "], groups: ", groups);
  if (result.op == "conv2d_backward_data") {
    result.inputs = {y, w};
    result.attributes += cat(", input_size: [", height, ", ", width, "]");
  } else if (result.op == "conv2d_backward_weights") {
    result.inputs = {x, y};
    result.attributes += cat(", kernel_size: [", kh, ", ", kw, "]");
  } else if (quantized) {
    quantize(x, w);
  } else {
    result.inputs = {x, w};
  }
}

/// Are all inputs there that the operator cannot do without, and no more than it takes?
void check_inputs(const std::string& whole, const OperatorCase& wanted) {
  const OpDef& op = find_op(wanted.op);
  std::string all;
  for (const Port& port : op.inputs) all += cat(all.empty() ? "" : " + ", port.name, port.optional ? "?" : port.variadic ? "*" : "");
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Port& port = op.inputs[i];
    if (port.optional || port.variadic) continue;
    if (i >= wanted.inputs.size() || !wanted.inputs[i]) bad_case(whole, cat("the shape of '", port.name, "' is missing: ", op.name, " takes ", all));
  }
  const bool any_number = !op.inputs.empty() && op.inputs.back().variadic;
  if (!any_number && wanted.inputs.size() > op.inputs.size()) bad_case(whole, cat("there are ", wanted.inputs.size(), " shapes, but ", op.name, " takes ", all.empty() ? "none" : all));
}

OperatorCase parse_case(const std::string& text) {
  open_backend();  // registers its own operators too
  const std::vector<std::string> parts = split(text, ':');
  OperatorCase result{.op = parts[0], .inputs = {}, .attributes = ""};
  if (find_op_or_null(result.op) == nullptr) {
    std::vector<std::string> names;
    for (const OpDef* op : all_ops()) names.emplace_back(op->name);
    const std::string near = nearest(result.op, names);
    throw Error(ErrorCode::kUsage, cat("there is no operator '", result.op, "'")).suggest(near.empty() ? "galley-benchmark op --dry-run lists all" : cat("did you mean '", near, "'?"));
  }
  if (parts.size() < 2 || parts.size() > 3) bad_case(text, "it should be NAME:SHAPES or NAME:SHAPES:ATTRIBUTES");
  const bool by_letters = result.op.starts_with("conv2d") || result.op == "linear" || result.op == "quantized_conv2d" || result.op == "quantized_linear";
  if (const auto sizes = parse_letters(parts[1]); by_letters && !sizes.empty()) {
    from_letters(text, result, sizes);
  } else {
    for (const std::string& shape : split(parts[1], '+')) {
      result.inputs.push_back(shape == "-" ? std::nullopt : std::optional(parse_shape(text, shape)));
    }
  }
  if (parts.size() == 3) {
    for (const std::string& item : split(parts[2], ',')) {
      const size_t equals = item.find('=');
      if (equals == std::string::npos) bad_case(text, cat("'", item, "' is no NAME=VALUE"));
      result.attributes += cat(result.attributes.empty() ? "" : ", ", item.substr(0, equals), ": ", item.substr(equals + 1));
    }
  }
  check_inputs(text, result);
  return result;
}

/// One node as a program of its own.
std::shared_ptr<const Program> compile_case(const OperatorCase& wanted, const std::string& text, bool winograd) {
  const OpDef& op = find_op(wanted.op);
  std::shared_ptr<Options> attributes = op.make_attrs != nullptr ? op.make_attrs() : nullptr;
  if (!wanted.attributes.empty()) {
    if (attributes == nullptr) bad_case(text, cat(wanted.op, " has no attributes"));
    read_options(parse_yaml(std::make_shared<TextSource>(TextSource{"the case " + text, "{" + wanted.attributes + "}"})), *attributes);
  }
  if (auto* lookup = dynamic_cast<LookupAttrs*>(attributes.get()); lookup != nullptr && lookup->table.empty()) {
    for (int64_t q = 0; q < 256; ++q) lookup->table.push_back(q);  // any table costs the same
  }
  Graph graph;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    if (!wanted.inputs[i]) {
      inputs.push_back(kNoValue);
      continue;
    }
    // Weights are parameters, so that they may lie as the kernel wants; updated state must be.
    const bool updated = std::any_of(op.updates.begin(), op.updates.end(), [&](const InPlace& update) { return update.input == static_cast<int>(i); });
    const bool weight = (i == 1 && (op.name.ends_with("conv2d") || op.name.ends_with("linear") || op.name.starts_with("dynamic_quantized"))) ||
                        ((i == 1 || i == 2) && (op.name == "lstm" || op.name == "gru"));
    inputs.push_back(graph.add_input(cat("in", i), *wanted.inputs[i], updated ? ValueRole::kState : weight ? ValueRole::kParameter : ValueRole::kInput).id());
  }
  const std::vector<Value> outputs = graph.add_node(op, attributes, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (std::none_of(op.updates.begin(), op.updates.end(), [&](const InPlace& update) { return update.output == static_cast<int>(i); })) graph.add_output(cat("out", i), outputs[i]);
  }
  return compile(std::move(graph), {.backend = open_backend("cpu", {.memory_format = LayoutMode::kChannelsLast, .winograd = winograd})});
}

struct OperatorWork {
  std::shared_ptr<const Program> program;
  ParameterStore store;
  std::unique_ptr<Execution> execution;
};

/// Integers stay below `below`, those of 8 bits below `levels`.
Tensor random_input(const TensorType& type, int64_t below, int64_t levels) {
  Tensor tensor(type.dtype, type.shape);
  RandomStream stream(0, "operator input", static_cast<uint64_t>(type.shape.elements()));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    switch (type.dtype) {
      case DType::kF32: tensor.data_as<float>()[i] = static_cast<float>(0.1 + 0.9 * stream.uniform()); break;  // logarithms and roots are at home here
      case DType::kI64: tensor.data_as<int64_t>()[i] = static_cast<int64_t>(stream.below(static_cast<uint64_t>(below))); break;
      case DType::kI8: tensor.data_as<int8_t>()[i] = static_cast<int8_t>(static_cast<int64_t>(stream.below(255)) - 127); break;
      case DType::kU8: tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>(stream.below(static_cast<uint64_t>(levels))); break;
      default: tensor.data_as<uint8_t>()[i] = static_cast<uint8_t>(stream.below(2)); break;
    }
  }
  return tensor;
}

/// Operators whose inputs are not simply equal shapes, with a case of usual size.
const std::map<std::string_view, std::vector<std::string>>& written_cases() {
  static const std::map<std::string_view, std::vector<std::string>> cases{
      {"conv2d", {"conv2d:mb16ic64ih56oc64kh3", "conv2d:mb16ic256ih14oc1024kh1", "conv2d:mb32ic96ih56oc96kh3sh2g96"}},
      {"conv2d_backward_data", {"conv2d_backward_data:mb16ic64ih56oc64kh3", "conv2d_backward_data:mb16ic256ih14oc1024kh1"}},
      {"conv2d_backward_weights", {"conv2d_backward_weights:mb16ic64ih56oc64kh3", "conv2d_backward_weights:mb16ic256ih14oc1024kh1"}},
      {"linear", {"linear:mb16ic2048oc1000"}},
      {"matmul", {"matmul:512x512+512x512", "matmul:24x197x64+24x64x197"}},
      {"batch_norm", {"batch_norm:16x64x56x56+64+64"}},
      {"batch_norm_backward", {"batch_norm_backward:16x64x56x56+16x64x56x56+64+64+64"}},
      {"batch_norm_inference", {"batch_norm_inference:16x64x56x56+64+64+64+64"}},
      {"batch_norm_update", {"batch_norm_update:64+64+64+64:count=50176"}},
      {"batch_norm_depthwise", {"batch_norm_depthwise:32x64x112x112+64x1x3x3+64+64:stride=2,padding=1,activation=hardswish", "batch_norm_depthwise:32x120x28x28+120x1x5x5+120+120:padding=2"}},
      {"batch_norm_depthwise_backward", {"batch_norm_depthwise_backward:32x64x56x56+64x1x3x3+32x64x112x112+64+64+64+64:stride=2,padding=1,activation=hardswish"}},
      {"pointwise_batch_norm_depthwise", {"pointwise_batch_norm_depthwise:32x16x112x112+64x16x1x1+64x1x3x3+64+64:stride=2,padding=1,activation=relu"}},
      {"pointwise_batch_norm_depthwise_backward",
       {"pointwise_batch_norm_depthwise_backward:32x64x56x56+64x1x3x3+64+64+64+64+32x16x112x112+64x16x1x1:stride=2,padding=1,activation=relu"}},
      {"pointwise_batch_norm_backward", {"pointwise_batch_norm_backward:32x72x56x56+32x72x56x56+72+72+72+72+-+32x24x56x56+72x24x1x1:activation=relu"}},
      {"layer_norm", {"layer_norm:16x197x768+768+768"}},
      {"layer_norm_backward", {"layer_norm_backward:16x197x768+16x197x768+16x197+16x197+768"}},
      {"group_norm", {"group_norm:16x64x56x56+64+64:groups=32"}},
      {"group_norm_backward", {"group_norm_backward:16x64x56x56+16x64x56x56+16x32+16x32+64:groups=32"}},
      {"max_pool2d", {"max_pool2d:16x64x112x112:kernel_size=3,stride=2,padding=1"}},
      {"max_pool2d_backward", {"max_pool2d_backward:16x64x56x56+16x64x56x56@u8:kernel_size=3,stride=2,padding=1,input_size=[112,112]"}},
      {"avg_pool2d", {"avg_pool2d:16x64x56x56:kernel_size=2"}},
      {"avg_pool2d_backward", {"avg_pool2d_backward:16x64x28x28:kernel_size=2,input_size=[56,56]"}},
      {"adaptive_avg_pool2d", {"adaptive_avg_pool2d:16x2048x7x7:output_size=1"}},
      {"adaptive_avg_pool2d_backward", {"adaptive_avg_pool2d_backward:16x2048x1x1:input_size=[7,7]"}},
      {"adaptive_max_pool2d", {"adaptive_max_pool2d:16x512x14x14:output_size=7"}},
      {"softmax", {"softmax:12x197x197:axis=2"}},
      {"softmax_backward", {"softmax_backward:12x197x197+12x197x197:axis=2"}},
      {"log_softmax", {"log_softmax:64x1000:axis=1"}},
      {"log_softmax_backward", {"log_softmax_backward:64x1000+64x1000:axis=1"}},
      {"cross_entropy", {"cross_entropy:64x1000+64@i64"}},
      {"cross_entropy_backward", {"cross_entropy_backward:scalar+64x1000+64@i64"}},
      {"embedding", {"embedding:10000x256+64x128@i64"}},
      {"embedding_backward", {"embedding_backward:64x128x256+64x128@i64:rows=10000"}},
      {"lstm", {"lstm:32x64x256+1024x256+1024x256+1024+1024", "lstm:1x64x256+1024x256+1024x256+1024+1024:save=false"}},
      {"lstm_backward", {"lstm_backward:32x64x256+-+-+32x64x1024+32x64x256+1024x256"}},
      {"gru", {"gru:32x64x256+768x256+768x256+768+768"}},
      {"gru_backward", {"gru_backward:32x64x256+-+32x64x1024+32x64x256+768x256"}},
      {"rnn", {"rnn:32x64x256+256x256+256x256+256+256"}},
      {"rnn_backward", {"rnn_backward:32x64x256+-+32x64x256+256x256"}},
      {"dynamic_quantized_lstm", {"dynamic_quantized_lstm:32x64x1024+1024x256@i8+1024", "dynamic_quantized_lstm:1x64x1024+1024x256@i8+1024"}},
      {"dynamic_quantized_gru", {"dynamic_quantized_gru:32x64x768+768x256@i8+768"}},
      {"dynamic_quantized_rnn", {"dynamic_quantized_rnn:32x64x256+256x256@i8+256"}},
      {"concat", {"concat:16x64x56x56+16x64x56x56:axis=1"}},
      {"slice", {"slice:16x64x56x56:axis=2,start=0,end=56,step=2"}},
      {"slice_backward", {"slice_backward:16x64x28x56:axis=2,start=0,end=56,step=2,size=56"}},
      {"pad", {"pad:16x64x56x56:padding=[0,0,0,0,1,1,1,1]"}},
      {"permute", {"permute:16x197x12x64:order=[0,2,1,3]"}},
      {"channel_shuffle", {"channel_shuffle:16x116x28x28:groups=2", "channel_shuffle:16x116x28x28:groups=58"}},
      {"cast", {"cast:16x64x56x56@u8:dtype=f32"}},
      {"resize", {"resize:16x3x256x256:size=[224,224]"}},
      {"resize_backward", {"resize_backward:16x64x56x56:input_size=[28,28]"}},
      {"where", {"where:16x64x56x56@bool+16x64x56x56+16x64x56x56"}},
      {"sum", {"sum:16x64x56x56:axes=[0,2,3]"}},
      {"mean", {"mean:16x64x56x56:axes=[2,3]"}},
      {"argmax", {"argmax:64x1000:axis=1"}},
      {"topk", {"topk:64x1000:k=5,axis=1"}},
      {"sum_to", {"sum_to:16x64x56x56:shape=[1,64,1,1]"}},
      {"sum_products", {"sum_products:16x64x56x56+16x64x56x56:shape=[16,64,1,1]"}},
      {"broadcast_to", {"broadcast_to:16x64x1x1:shape=[16,64,56,56]"}},
      {"dropout", {"dropout:16x4096+3@i64:p=0.5"}},
      {"stochastic_depth", {"stochastic_depth:16x64x56x56+3@i64:p=0.2"}},
      {"sgd_update", {"sgd_update:2048x1000+2048x1000+scalar+scalar@i64+2048x1000:momentum=0.9"}},
      {"adam_update", {"adam_update:2048x1000+2048x1000+scalar+scalar@i64+2048x1000+2048x1000"}},
      {"rmsprop_update", {"rmsprop_update:2048x1000+2048x1000+scalar+scalar@i64+2048x1000"}},
      {"ema_update", {"ema_update:2048x1000+2048x1000+scalar"}},
      {"clip_coefficient", {"clip_coefficient:scalar:max_norm=1"}},
      {"dequantize", {"dequantize:16x64x56x56@u8:scale=0.5,zero_point=128"}},
      {"lookup", {"lookup:16x64x56x56@u8"}},
      {"dequantize_weight", {"dequantize_weight:1000x2048@i8+1000", "dequantize_weight:1000x1024@u8+1000x32:bits=4,group_size=64"}},
      {"quantized_conv2d", {"quantized_conv2d:mb16ic64ih56oc64kh3", "quantized_conv2d:mb16ic256ih14oc1024kh1", "quantized_conv2d:mb32ic96ih56oc96kh3sh2g96"}},
      {"quantized_linear", {"quantized_linear:mb16ic2048oc1000"}},
      {"dynamic_quantized_linear", {"dynamic_quantized_linear:16x2048+1000x2048@i8+1000"}},
      {"quantized_add", {"quantized_add:16x64x56x56@u8+16x64x56x56@u8:output_dtype=u8,output_scale=2"}},
      {"quantized_mul", {"quantized_mul:16x96x28x28@u8+16x96x1x1@u8:output_dtype=u8,output_scale=256"}},
      {"quantized_concat", {"quantized_concat:16x64x56x56@u8+16x64x56x56@u8:input_scales=[1,2],input_zero_points=[0,0],output_dtype=u8,output_scale=2"}},
      {"quantized_avg_pool2d", {"quantized_avg_pool2d:16x64x56x56@u8:kernel_size=2,output_dtype=u8"}},
      {"quantized_adaptive_avg_pool2d", {"quantized_adaptive_avg_pool2d:16x2048x7x7@u8:output_size=1,output_dtype=u8"}},
      {"fake_quantize", {"fake_quantize:16x64x56x56+scalar+scalar", "fake_quantize:512x512x3x3+512+512:axis=0,qmin=-127,qmax=127"}},
      {"fake_quantize_backward", {"fake_quantize_backward:16x64x56x56+16x64x56x56+scalar+scalar"}},
      {"fake_quantize_scale_backward", {"fake_quantize_scale_backward:16x64x56x56+16x64x56x56+scalar+scalar"}},
      {"observe_range", {"observe_range:16x64x56x56+scalar+scalar+scalar"}},
      {"winograd_weights", {"winograd_weights:512x512x3x3", "winograd_weights:512x512x3x3:backward=true"}},
      {"winograd_conv2d", {"winograd_conv2d:16x64x56x56+36x64x64:padding=1"}},
      {"winograd_conv2d_backward_weights", {"winograd_conv2d_backward_weights:16x64x56x56+16x64x56x56:padding=1,kernel_size=3"}},
      {"qparams_from_range", {"qparams_from_range:512+512"}},
  };
  return cases;
}

/// A case of equal shapes where infer takes that, else "".
std::string plain_case(const OpDef& op) {
  size_t inputs = 0;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    if (!op.inputs[i].optional) inputs = i + 1;
  }
  std::string text = cat(op.name, ":");
  for (size_t i = 0; i < inputs; ++i) text += cat(i == 0 ? "" : "+", op.inputs[i].optional ? "-" : "16x64x56x56");
  try {
    compile_case(parse_case(text), text, true);
  } catch (const Error&) {
    return "";  // wants other shapes: such operators are in written_cases, which a test holds
  }
  return text;
}

}  // namespace

std::vector<std::string> operator_cases(const std::string& name) {
  open_backend();  // registers its own operators too
  std::vector<std::string> cases;
  for (const OpDef* op : all_ops()) {
    if (!name.empty() && op->name != name) continue;
    if (op->view() || op->inputs.empty()) continue;  // nothing runs
    const auto written = written_cases().find(op->name);
    if (written != written_cases().end()) {
      cases.insert(cases.end(), written->second.begin(), written->second.end());
    } else if (std::string text = plain_case(*op); !text.empty()) {
      cases.push_back(std::move(text));
    }
  }
  if (cases.empty()) parse_case(name);  // says that there is no such operator
  if (cases.empty()) bad_case(name, "this operator has no usual case: give its shapes");
  return cases;
}

Candidate make_operator(const std::string& text, bool winograd) {
  const OperatorCase wanted = parse_case(text);
  auto parts = std::make_shared<OperatorWork>();
  parts->program = compile_case(wanted, text, winograd);
  parts->store.declare(*parts->program);
  parts->execution = std::make_unique<Execution>(parts->program, parts->store);
  Candidate candidate;
  const Graph& graph = parts->program->graph();
  for (size_t i = 0; i < wanted.inputs.size(); ++i) {
    if (!wanted.inputs[i]) continue;
    const std::string name = cat("in", i);
    // Indices stay below every usual table and class count.
    // Taps of a pooling window are few; quantized values fill their range.
    const Tensor values = random_input(*wanted.inputs[i], wanted.op == "sgd_update" || wanted.op == "adam_update" ? 1 : 1000, wanted.op.ends_with("_backward") ? 2 : 256);
    if (parts->store.has(name)) {
      parts->store.set(name, values);
    } else {
      parts->execution->feed(name, values);
    }
  }
  for (const Node& node : graph.nodes()) {
    const Cost cost = cost_of(*node.op, context_of(graph, node));
    // The back end may have replaced a convolution by an operator of its own.
    if (node.op->name != wanted.op && !(node.op->target && cost.flops > 0)) continue;
    candidate.row.flops = cost.flops;
    candidate.row.executed.add(cost);
    candidate.row.bytes = cost.bytes_read + cost.bytes_written;
  }
  candidate.row.recipe = "op";
  candidate.row.what = text;
  candidate.row.threads = compute_threads();
  candidate.row.peak_bytes = 0;
  candidate.run = [work = parts.get()] { work->execution->run(); };
  candidate.parts = parts;
  candidate.run();
  return candidate;
}

}  // namespace galley::tools
