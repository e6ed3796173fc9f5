#include "libcore/infer/text_predictor.h"

#include <algorithm>
#include <cstring>

#include "libcore/base/error.h"
#include "libcore/infer/inference.h"
#include "libcore/infer/program_length.h"
#include "libcore/nn/language_model.h"
#include "libcore/runtime/execution.h"
#include "libcore/text/shorten.h"

namespace galley {
namespace {

constexpr const char* kIds = "input_ids";
constexpr const char* kTypes = "token_type_ids";
constexpr const char* kLengths = "input_ids.length";

bool has_input(const ModelInfo& info, std::string_view name) {
  return std::any_of(info.inputs.begin(), info.inputs.end(), [&](const ModelInput& input) { return input.name == name; });
}

/// Row `row` of a batch's result; of results with a value per token, the first `tokens`.
Tensor row_of_result(const Tensor& output, size_t row, int64_t length, int64_t tokens) {
  Shape shape = output.shape();
  const int64_t bytes = output.bytes() / shape[0];
  shape[0] = 1;
  int64_t kept = bytes;
  if (shape.rank() > 1 && shape[1] == length) {
    shape[1] = tokens;
    kept = bytes / length * tokens;
  }
  Tensor mine(output.dtype(), shape);
  std::memcpy(mine.data(), static_cast<const std::byte*>(output.data()) + static_cast<int64_t>(row) * bytes, static_cast<size_t>(kept));
  return mine;
}

}  // namespace

TextPredictor::TextPredictor(Session& session, int64_t batch) : session_(session), batch_(batch) {
  session.need_tokenizer();
  const ModelInfo& info = session.info();
  if (!has_input(info, kIds) || !has_input(info, kLengths)) {
    throw Error(ErrorCode::kRecipe, cat("the model ", session.model().type, " has no result for a whole text"))
        .key("model")
        .suggest(info.output == ModelOutput::kTokens ? "--prompt TEXT continues a text" : "an encoder: bert, roberta, distilbert ...");
  }
  takes_types_ = has_input(info, kTypes);
  longest_ = info.max_length;
  plan_ = loaded_plan(session.recipe());
  engine_ = std::make_unique<Engine>(session.backend());
  execution(1, program_length(1, longest_));
}

TextPredictor::~TextPredictor() = default;

Execution& TextPredictor::execution(int64_t rows, int64_t length) {
  std::unique_ptr<Execution>& slot = executions_[{rows, length}];
  if (slot != nullptr) return *slot;
  const bool first = !engine_->has_formats();
  const TensorType tokens{.dtype = DType::kI64, .shape = {rows, length}, .names = {"N", "T"}};
  BatchTypes types;
  types.inputs = {kIds, kLengths};
  types.fields = {{kIds, tokens}, {kLengths, {.dtype = DType::kI64, .shape = {rows}}}};
  if (takes_types_) {
    types.inputs.emplace_back(kTypes);
    types.fields.emplace(kTypes, tokens);
  }
  InferenceModel model = inference_model(session_, types, plan_);
  outputs_.clear();
  result_bytes_ = 0;
  for (const auto& [name, id] : model.graph.outputs()) {
    outputs_.push_back(name);
    const TensorType& type = model.graph.type(id);
    const bool by_token = type.shape.rank() > 1 && type.shape[1] == length;
    result_bytes_ += type.bytes() / rows * (by_token ? longest_ : length) / length;
  }
  const auto program = engine_->program(
      {.mode = "predict", .variant = "", .fields = types.fields}, cat(rows, " texts of ", length, " tokens"),
      [&] { return std::move(model.graph); }, first ? ParameterFormats::kLead : ParameterFormats::kFollow);
  engine_->declare(*program);
  if (first) session_.initialize(model.parameters, engine_->store());
  slot = engine_->bind(program);
  return *slot;
}

TextRow TextPredictor::row(const std::string& text, const std::string* pair, const std::string& name) const {
  const text::Tokenizer& tokenizer = *session_.tokenizer();
  std::vector<text::Token> tokens = pair != nullptr ? tokenizer.pair(text, *pair, {.name = name}) : tokenizer.tokens(text, {.name = name});
  const bool shortened = std::ssize(tokens) > longest_;
  if (shortened) {
    const size_t first = tokenizer.encode(text, {.add_special = false, .name = name}).size();
    text::shorten(tokens, first, static_cast<size_t>(longest_));
  }
  if (tokens.empty()) throw Error(ErrorCode::kInput, cat(name, ": the text has no tokens"));
  TextRow made = row(tokens, name);
  made.shortened = shortened;
  return made;
}

TextRow TextPredictor::row(const std::vector<text::Token>& tokens, const std::string& name) const {
  const text::Tokenizer& tokenizer = *session_.tokenizer();
  const LanguageModelParams* params = language_model_params(session_.model());
  TextRow row;
  for (const text::Token& token : tokens) {
    if (params != nullptr && token.id >= params->tokens())
      throw Error(ErrorCode::kInput, cat(name, ": the token '", tokenizer.piece(token.id), "' has the id ", token.id,
                                         ", but the model's vocabulary ends at ", params->tokens() - 1))
          .suggest("the tokenizer belongs to another model: set data.tokenizer.path");
    row.ids.push_back(token.id);
    row.types.push_back(token.type);
  }
  return row;
}

std::vector<TextResult> TextPredictor::run_batch(const std::vector<const TextRow*>& rows, int64_t length) {
  const int64_t count = rows.size() == 1 ? 1 : batch_;
  Tensor ids(DType::kI64, {count, length}), types(DType::kI64, {count, length}), lengths(DType::kI64, {count});
  for (int64_t n = 0; n < count; ++n) {
    const TextRow* row = n < std::ssize(rows) ? rows[static_cast<size_t>(n)] : nullptr;
    const int64_t tokens = row == nullptr ? 0 : std::ssize(row->ids);
    lengths.data_as<int64_t>()[n] = std::max<int64_t>(1, tokens);
    for (int64_t t = 0; t < length; ++t) {
      ids.data_as<int64_t>()[n * length + t] = t < tokens ? row->ids[static_cast<size_t>(t)] : 0;
      types.data_as<int64_t>()[n * length + t] = t < tokens ? row->types[static_cast<size_t>(t)] : 0;
    }
  }
  Execution& run = execution(count, length);
  run.feed(kIds, ids);
  if (run.takes(kLengths)) run.feed(kLengths, lengths);
  if (run.takes(kTypes)) run.feed(kTypes, types);
  run.run();
  std::vector<TextResult> results(rows.size());
  for (const std::string& name : outputs_) {
    const Tensor output = run.output(name).to(MemoryFormat::contiguous());
    for (size_t n = 0; n < rows.size(); ++n) results[n].outputs.emplace(name, row_of_result(output, n, length, std::ssize(rows[n]->ids)));
  }
  for (size_t n = 0; n < rows.size(); ++n) {
    results[n].tokens = rows[n]->ids;
    results[n].shortened = rows[n]->shortened;
  }
  return results;
}

void TextPredictor::run(size_t all, const std::function<TextRow(size_t index)>& row,
                        const std::function<void(size_t index, TextResult result)>& take) {
  // The number of texts sorted by length at a time: batches are full, while the results wait for their turn.
  constexpr int64_t kMostBatches = 64, kWaitingBytes = int64_t{256} << 20;
  const auto window = static_cast<size_t>(std::clamp(kWaitingBytes / std::max<int64_t>(1, result_bytes_), batch_, kMostBatches * batch_));
  for (size_t begin = 0; begin < all; begin += window) {
    const size_t end = std::min(all, begin + window);
    std::vector<TextRow> rows;
    for (size_t i = begin; i < end; ++i) rows.push_back(row(i));
    std::map<int64_t, std::vector<size_t>> by_length;
    for (size_t i = 0; i < rows.size(); ++i) {
      by_length[program_length(std::ssize(rows[i].ids), longest_)].push_back(i);
    }
    std::vector<TextResult> results(rows.size());
    for (const auto& [length, members] : by_length) {
      for (size_t at = 0; at < members.size(); at += static_cast<size_t>(batch_)) {
        const size_t count = std::min(members.size() - at, static_cast<size_t>(batch_));
        std::vector<const TextRow*> batch;
        for (size_t k = 0; k < count; ++k) batch.push_back(&rows[members[at + k]]);
        std::vector<TextResult> made = run_batch(batch, length);
        for (size_t k = 0; k < count; ++k) results[members[at + k]] = std::move(made[k]);
      }
    }
    for (size_t i = 0; i < results.size(); ++i) take(begin + i, std::move(results[i]));
  }
}

}  // namespace galley
