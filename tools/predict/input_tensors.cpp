#include "tools/predict/input_tensors.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/base/log.h"
#include "libcore/nn/language_model.h"
#include "libcore/tasks/task.h"
#include "libcore/weights/safetensors.h"

namespace galley::tools {
namespace {

constexpr std::string_view kHubTokens = "input_ids";  // what the tokens of a language model are called on hubs
constexpr std::string_view kLength = ".length";

[[noreturn]] void refuse(const std::string& path, const std::string& name, const std::string& message, const std::string& cure) {
  throw Error(ErrorCode::kInput, cat("the tensor '", name, "' ", message)).at({.file = path}).suggest(cure);
}

std::vector<int64_t> integers_of(const Tensor& tensor) {
  const std::vector<double> values = tensor.to_doubles();
  return {values.begin(), values.end()};
}

/// Tokens [N,T] of the model's vocabulary.
void check_tokens(const Session& session, const Tensor& tokens, const std::string& name, const std::string& path) {
  const std::string form = "write the ids as integers [N,T]: a row of T tokens for each of N texts";
  if (tokens.dtype() != DType::kI64 && tokens.dtype() != DType::kI32) refuse(path, name, cat("is ", tokens.str(), ", not integers"), form);
  if (tokens.shape().rank() != 2) refuse(path, name, cat("is ", tokens.str(), ", not [N,T]"), form);
  const int64_t length = tokens.shape()[1];
  const int64_t longest = session.info().max_length > 0 ? session.info().max_length : session.info().input_shape.front();
  if (length < 1) refuse(path, name, "has no tokens", form);
  if (length > longest) refuse(path, name, cat("has ", length, " tokens in a row, the model reads at most ", longest), "shorten the rows");
  const LanguageModelParams* params = language_model_params(session.model());
  if (params == nullptr) return;
  const std::vector<int64_t> ids = integers_of(tokens);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < params->tokens()) continue;
    const auto at = static_cast<int64_t>(i);
    refuse(path, name,
           cat("has the id ", ids[i], " at [", at / length, ",", at % length, "]; the vocabulary ends at ", params->tokens() - 1),
           "ids are those of the model's tokenizer: galley-predict R --tokenize TEXT prints them");
  }
}

/// Refuses NaN and infinity, since some kernels, such as a convolution with relu, turn NaN into 0.
void check_finite(const Tensor& tensor, const std::string& name, const std::string& path) {
  if (!is_floating(tensor.dtype())) return;
  const std::vector<double> values = tensor.to_doubles();
  const auto found = std::find_if(values.begin(), values.end(), [](double value) { return !std::isfinite(value); });
  if (found == values.end()) return;
  std::string place;
  int64_t rest = found - values.begin();
  for (int d = tensor.shape().rank() - 1; d >= 0; --d) {
    place = cat(rest % tensor.shape()[d], place.empty() ? "" : ",", place);
    rest /= tensor.shape()[d];
  }
  refuse(path, name, cat("has ", *found, " at [", place, "]"), "write finite numbers");
}

/// Lengths [N] of the rows of the tensor that they belong to.
void check_lengths(const Tensor& lengths, int64_t longest, const std::string& name, const std::string& path) {
  const std::vector<int64_t> values = integers_of(lengths);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 1 || values[i] > longest)
      refuse(path, name, cat("has ", values[i], " at [", i, "]; a length is 1 to ", longest), "write the number of tokens of each row");
  }
}

/// Says which tensors the model does not read.
void check_unread(const Session& session, const SafetensorsFile& file, const std::set<std::string>& read, bool tokens,
                  const std::string& path) {
  std::set<std::string> known = read;
  if (const Task* task = session.task_or_null()) {
    for (const FieldType& field : task->targets()) known.insert(field.name);
  }
  const auto list_unread = [&] {
    std::string list;
    for (const SafetensorsEntry& entry : file.entries()) {
      const std::string& name = entry.name;
      if (!known.contains(name) && !known.contains(name.substr(0, name.find('.')))) list += cat(list.empty() ? "" : ", ", name);
    }
    return list;
  };
  if (list_unread().empty()) return;
  // Results that another program has put beside the inputs are no mistake.
  const CapturedModel model = session.capture_inference(session.usual_types(1, false));
  for (const auto& [name, id] : model.graph.outputs()) known.insert(name);
  const std::string unread = list_unread();
  std::string inputs;
  if (unread.empty()) return;
  for (const ModelInput& input : session.info().all_inputs()) {
    const bool renamed = tokens && input.name == "input";
    inputs += cat(inputs.empty() ? "" : ", ", renamed ? kHubTokens : std::string_view(input.name), input.optional ? " (optional)" : "");
  }
  const std::string message = cat("the model does not read ", unread, "; it reads ", inputs);
  if (tokens) throw Error(ErrorCode::kInput, message).at({.file = path}).suggest("rename or remove these tensors");
  log(LogLevel::kWarning, cat(path, ": ", message));
}

}  // namespace

std::map<std::string, Tensor> input_tensors(const Session& session, const std::string& path) {
  const SafetensorsFile file(path);
  const std::vector<ModelInput> inputs = session.info().all_inputs();
  const bool tokens = language_model_params(session.model()) != nullptr;
  std::map<std::string, Tensor> arrays;
  std::set<std::string> read;
  for (const ModelInput& input : inputs) {
    // An imported decoder has no vocabulary of its own.
    const bool language = tokens || (session.info().output == ModelOutput::kTokens && file.find(kHubTokens) != nullptr);
    const bool renamed = language && input.name == "input" && file.find(input.name) == nullptr;
    const std::string name = renamed ? std::string(kHubTokens) : input.name;
    if (input.optional && file.find(name) == nullptr) continue;
    read.insert(name);
    arrays.emplace(input.name, file.read(name));
    check_finite(arrays.at(input.name), name, path);
    if (tokens && !input.optional && input.shape.size() == 1) check_tokens(session, arrays.at(input.name), name, path);
  }
  for (const auto& [name, tensor] : arrays) {
    const auto of = name.ends_with(kLength) ? arrays.find(name.substr(0, name.size() - kLength.size())) : arrays.end();
    if (tokens && of != arrays.end()) check_lengths(tensor, of->second.shape()[1], name, path);
  }
  check_unread(session, file, read, tokens, path);
  return arrays;
}

}  // namespace galley::tools
