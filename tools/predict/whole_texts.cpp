// galley-predict on whole texts: --text, --text-file, --embed.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/infer/text_predictor.h"
#include "libcore/nn/encoder.h"
#include "libcore/tasks/kinds.h"
#include "libcore/tasks/top_classes.h"
#include "libcore/text/tokenizer.h"
#include "libcore/weights/safetensors.h"
#include "tools/common/output_file.h"
#include "tools/common/signals.h"
#include "tools/predict/predict.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

/// Collects the results of all texts for -o. Results with a value per token are padded with zeros; tokens.length has their number.
class CollectedTexts {
 public:
  void add(const TextResult& result) {
    lengths_.push_back(std::ssize(result.tokens));
    for (const auto& [name, tensor] : result.outputs) rows_[name].push_back(tensor);
  }
  void write(const std::string& path, const Metadata& metadata) const {
    std::vector<TensorSource> sources;
    bool padded = false;
    for (const auto& entry : rows_) {
      const std::vector<Tensor>& rows = entry.second;
      const bool by_token = std::any_of(rows.begin(), rows.end(), [&](const Tensor& row) { return row.shape() != rows[0].shape(); });
      padded |= by_token;
      Shape shape = rows.front().shape();
      shape[0] = std::ssize(rows);
      if (by_token) shape[1] = *std::max_element(lengths_.begin(), lengths_.end());
      Tensor all(rows.front().dtype(), shape);
      std::memset(all.data(), 0, static_cast<size_t>(all.bytes()));
      const int64_t stride = all.bytes() / shape[0];
      for (size_t i = 0; i < rows.size(); ++i)
        std::memcpy(static_cast<std::byte*>(all.data()) + static_cast<int64_t>(i) * stride, rows[i].data(),
                    static_cast<size_t>(rows[i].bytes()));
      sources.emplace_back(entry.first, all);
    }
    if (padded) {
      Tensor lengths(DType::kI64, {std::ssize(lengths_)});
      std::copy(lengths_.begin(), lengths_.end(), lengths.data_as<int64_t>());
      sources.emplace_back("tokens.length", lengths);
    }
    write_safetensors(path, sources, metadata);
  }

 private:
  std::vector<int64_t> lengths_;
  std::map<std::string, std::vector<Tensor>> rows_;
};

/// Results with values for each token, as text: the class of each token, whether it was replaced, or the tokens that fit in place of each
/// mask.
class TokenPresenter {
 public:
  /// Null for models whose results are of another kind.
  static std::unique_ptr<TokenPresenter> of(const Session& session, const PresentContext& context) {
    const auto* encoder = dynamic_cast<const EncoderParams*>(session.model().params.get());
    const auto make = [&](Kind kind) { return std::unique_ptr<TokenPresenter>(new TokenPresenter(*session.tokenizer(), kind, context)); };
    if (session.info().output == ModelOutput::kMaskedTokens) return make(Kind::kMasks);
    if (session.info().output == ModelOutput::kTokenClasses) return make(Kind::kClasses);
    if (encoder != nullptr && encoder->head == EncoderHead::kReplacedTokens) return make(Kind::kReplaced);
    return nullptr;
  }

  /// The name of the mask, where the model fills masks and the text has none.
  std::optional<std::string> lacks_mask(const TextResult& result) const {
    const bool fills = kind_ == Kind::kMasks && std::find(result.tokens.begin(), result.tokens.end(), mask_) == result.tokens.end();
    return fills ? std::optional(mask_name_) : std::nullopt;
  }
  std::vector<std::string> columns() const {
    if (kind_ == Kind::kMasks) return {"position", "rank", "index", "token", "score"};
    if (kind_ == Kind::kReplaced) return {"token", "score"};
    return {"token", "index", "label", "score"};
  }
  Presentation present(const TextResult& result, const Tensor& logits, const std::string& name) const {
    check_finite_output(logits, name);
    const int64_t classes = kind_ == Kind::kReplaced ? 1 : logits.shape()[2];
    Presentation shown;
    Json list = Json::array();
    for (size_t t = 0; t < result.tokens.size(); ++t) {
      const bool special = tokenizer_.is_special(result.tokens[t]);
      if (kind_ == Kind::kMasks ? result.tokens[t] != mask_ : special) continue;
      const float* row = logits.data_as<float>() + static_cast<int64_t>(t) * classes;
      switch (kind_) {
        case Kind::kMasks: list.push_back(masked(t, row, classes, shown.rows)); break;
        case Kind::kClasses: list.push_back(classified(result.tokens[t], row, classes, shown.rows)); break;
        case Kind::kReplaced: list.push_back(replaced(result.tokens[t], *row, shown.rows)); break;
      }
    }
    Json made{{kind_ == Kind::kMasks ? "masks" : "tokens", std::move(list)}};
    for (const char* pairs : {"seq_relationship_logits", "sop_logits"}) {
      const auto next = result.outputs.find(pairs);
      if (next == result.outputs.end()) continue;
      check_finite_output(next->second, name);
      made["top"] = Json::array();
      for (const auto& [index, score] : top_classes(next->second.data_as<float>(), 2, 2)) {
        const std::string label = context_.label(index);
        shown.rows.push_back({"", cat(made["top"].size() + 1), cat(index), label, human_number(score)});
        made["top"].push_back({{"index", index}, {"label", label}, {"score", score}});
      }
    }
    shown.json = made.dump(-1, ' ', false, Json::error_handler_t::replace);
    return shown;
  }

 private:
  enum class Kind { kMasks, kClasses, kReplaced };

  TokenPresenter(const text::Tokenizer& tokenizer, Kind kind, PresentContext context)
      : tokenizer_(tokenizer), kind_(kind), context_(std::move(context)) {
    for (const char* piece : {"[MASK]", "<mask>"}) {
      if (const auto id = tokenizer.id(piece)) {
        mask_ = *id;
        mask_name_ = piece;
      }
    }
  }
  Json masked(size_t position, const float* row, int64_t classes, std::vector<std::vector<std::string>>& rows) const {
    Json top = Json::array();
    for (const auto& [index, score] : top_classes(row, classes, context_.top)) {
      const std::string piece = tokenizer_.has(index) ? tokenizer_.piece(index) : std::string();
      rows.push_back({cat(position), cat(top.size() + 1), cat(index), piece, human_number(score)});
      top.push_back({{"index", index}, {"label", piece}, {"score", score}});
    }
    return {{"position", position}, {"top", std::move(top)}};
  }
  Json classified(int32_t token, const float* row, int64_t classes, std::vector<std::vector<std::string>>& rows) const {
    const auto [index, score] = top_classes(row, classes, 1).front();
    rows.push_back({tokenizer_.piece(token), cat(index), context_.label(index), human_number(score)});
    return {{"token", tokenizer_.piece(token)}, {"index", index}, {"label", context_.label(index)}, {"score", score}};
  }
  /// `score`: the probability that the token was replaced.
  Json replaced(int32_t token, float logit, std::vector<std::vector<std::string>>& rows) const {
    const double score = 1 / (1 + std::exp(-static_cast<double>(logit)));
    rows.push_back({tokenizer_.piece(token), human_number(score)});
    return {{"token", tokenizer_.piece(token)}, {"score", score}};
  }

  const text::Tokenizer& tokenizer_;
  Kind kind_;
  PresentContext context_;
  int32_t mask_ = -1;
  std::string mask_name_ = "mask";
};

/// What is printed of the texts.
class TextListing {
 public:
  TextListing(const Presenter* presenter, const TokenPresenter* tokens, bool embed, Json provenance)
      : presenter_(presenter), tokens_(tokens), embed_(embed), provenance_(std::move(provenance)) {}

  /// Shows second texts too.
  void show_pairs() { pairs_ = true; }
  bool presents() const { return presenter_ != nullptr || tokens_ != nullptr || embed_; }
  void add(const NamedTexts& given, size_t index, const TextResult& result, const std::string& first) {
    const std::string &text = given.texts[index], &name = given.names[index];
    Json line{{"text", text}};
    if (pairs_) line["pair"] = given.pairs[index];
    if (embed_) {
      const Tensor& vector = result.outputs.at("embedding");
      check_finite_output(vector, name);
      Json values = Json::array();
      std::string shown;
      for (int64_t i = 0; i < vector.elements(); ++i) {
        const float value = vector.data_as<float>()[i];
        values.push_back(value);
        shown += cat(i > 0 ? " " : "", value);
      }
      line["embedding"] = std::move(values);
      rows_.push_back({text, shown});
    } else {
      const Tensor& output = result.outputs.at(first);
      std::map<std::string, Tensor> results = result.outputs;
      results.emplace("output", output);
      const Presentation presented =
          tokens_ != nullptr ? tokens_->present(result, output, name) : presenter_->present(results, name, nullptr);
      const Json made = Json::parse(presented.json);
      for (const auto& [key, value] : made.items()) line[key] = value;
      for (size_t i = 0; i < presented.rows.size(); ++i) {
        rows_.push_back({i == 0 ? text : ""});
        if (pairs_) rows_.back().push_back(i == 0 ? given.pairs[index] : "");
        rows_.back().insert(rows_.back().end(), presented.rows[i].begin(), presented.rows[i].end());
      }
    }
    if (result.shortened) line["note"] = cat("shortened to ", result.tokens.size(), " tokens");
    line["provenance"] = provenance_;
    lines_ += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }
  const std::string& lines() const { return lines_; }
  Table table() const {
    Table table{{"text"}, rows_};
    if (pairs_) table.headings.emplace_back("pair");
    if (embed_) {
      table.headings.emplace_back("embedding");
    } else {
      for (const std::string& column : tokens_ != nullptr ? tokens_->columns() : presenter_->columns()) table.headings.push_back(column);
    }
    for (std::vector<std::string>& row : table.rows) row.resize(table.headings.size());
    return table;
  }

 private:
  const Presenter* presenter_;
  const TokenPresenter* tokens_;
  bool embed_, pairs_ = false;
  Json provenance_;
  std::vector<std::vector<std::string>> rows_;
  std::string lines_;
};

}  // namespace

int PredictTool::run_whole_texts(LoadedRecipe& loaded) {
  const Recipe& recipe = loaded.recipe;
  if (!inputs_.empty() || !tensors_.empty())
    throw Error(ErrorCode::kUsage, cat("both text and a file were given: ", inputs_.empty() ? tensors_ : inputs_[0]))
        .suggest("give one of them");
  if (!capture_.empty() || !draw_.empty()) throw Error(ErrorCode::kUsage, "--capture and --draw do not apply to text");
  if (!output_.empty()) check_output_file(output_, "-o writes tensors", "out.safetensors");
  if (text_.embed && text_.has_pairs()) throw Error(ErrorCode::kUsage, "--embed gives the vector of one text, not of a pair");
  const NamedTexts given = texts_of(text_);
  Session session(recipe);
  TextPredictor predictor(session, batch_);
  const std::string recipe_text = dump_recipe(recipe, DumpKind::kFull);
  if (session.info().output == ModelOutput::kSpans && output_.empty()) return answer_questions(session, predictor, given, recipe_text);
  const PresentContext context{.categories = session.prediction_categories(),
                               .top = recipe.predict.top,
                               .min_score = recipe.predict.min_score,
                               .threshold = recipe.predict.threshold};
  std::unique_ptr<Presenter> presenter;
  std::unique_ptr<TokenPresenter> tokens;
  if (!text_.embed) {
    const Task* task = session.task_or_null();
    if (task != nullptr || session.recipe().task.type == "auto") tokens = TokenPresenter::of(session, context);
    if (tokens == nullptr && task != nullptr) presenter = task->presenter(context);
  }
  if (presenter == nullptr && tokens == nullptr && !text_.embed && output_.empty()) {
    throw Error(ErrorCode::kUsage, "the results of this model have no form as text: they are tensors")
        .suggest("-o out.safetensors writes them; --embed gives the vectors of texts");
  }
  if (dry_run_) {
    print("the recipe, its weights and the inputs fit\n");
    return kExitDone;
  }
  TextListing listing(presenter.get(), tokens.get(), text_.embed, provenance_json(provenance(recipe, recipe_text)));
  if (!given.pairs.empty()) listing.show_pairs();
  CollectedTexts collected;
  int64_t shortened = 0, without_mask = 0;
  const auto began = std::chrono::steady_clock::now();
  const auto row = [&](size_t index) {
    check_stop();
    try {
      return predictor.row(given.texts[index], given.pair(index), given.names[index]);
    } catch (const Error& error) {
      throw given.lines[index] > 0 ? error_in_file(error, text_.texts_file, given.lines[index]) : error_in_file(error, "--text", 0);
    }
  };
  predictor.run(given.texts.size(), row, [&](size_t index, TextResult result) {
    if (result.shortened && shortened++ == 0)
      log(LogLevel::kWarning, cat(given.names[index], ": the text was shortened to ", result.tokens.size(),
                                  " tokens, the most that the model takes (others are counted)"));
    if (const auto mask = tokens != nullptr ? tokens->lacks_mask(result) : std::nullopt; mask && without_mask++ == 0)
      log(LogLevel::kWarning, cat(given.names[index], ": the text has no ", *mask, ", so there is nothing to fill (others are counted)"));
    if (listing.presents()) listing.add(given, index, result, predictor.outputs().front());
    if (!output_.empty()) collected.add(result);
  });
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (!output_.empty()) collected.write(output_, {{"galley.recipe", recipe_text}});
  log(LogLevel::kInfo,
      cat(counted(std::ssize(given.texts), "text"), " in ", human_seconds(wall_s), shortened > 0 ? cat(", ", shortened, " shortened") : "",
          without_mask > 0 ? cat(", ", without_mask, " without a mask") : ""));
  if (!listing.presents() || (text_.embed && !output_.empty() && common.format != Format::kJson)) return kExitDone;
  save_and_print(listing.lines(), listing.table());
  return kExitDone;
}

}  // namespace galley::tools
