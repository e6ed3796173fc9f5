// galley-predict on questions: --text QUESTION --text-pair CONTEXT for models with start and end logits.

#include "libcore/tasks/answers.h"

#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/infer/text_predictor.h"
#include "libcore/tasks/kinds.h"
#include "libcore/text/windows.h"
#include "tools/common/signals.h"
#include "tools/predict/predict.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kShared = 128;  // tokens that windows over a long context share, as transformers' doc_stride

/// A part of a context, and the number of its question.
struct QuestionWindow {
  size_t question = 0;
  text::ContextWindow window;
};

std::vector<QuestionWindow> windows_of(const Session& session, const TextPredictor& predictor, const NamedTexts& given) {
  std::vector<QuestionWindow> all;
  for (size_t i = 0; i < given.texts.size(); ++i) {
    for (text::ContextWindow& window : text::context_windows(*session.tokenizer(), given.texts[i], given.pairs[i],
                                                             static_cast<size_t>(predictor.longest()), kShared, given.names[i]))
      all.push_back({i, std::move(window)});
  }
  return all;
}

/// Characters of the first `bytes` of a text.
int64_t characters(const std::string& text, size_t bytes) {
  int64_t count = 0;
  for (size_t i = 0; i < bytes; ++i) count += (static_cast<uint8_t>(text[i]) & 0xC0) != 0x80;
  return count;
}

class AnswerListing {
 public:
  AnswerListing(const Recipe& recipe, Json provenance)
      : top_(recipe.predict.top), least_(recipe.predict.min_score), provenance_(std::move(provenance)) {}

  void add(const std::string& question, const std::string& context, const std::vector<AnswerSpan>& spans) {
    Json line{{"text", question}, {"pair", context}, {"answers", Json::array()}};
    bool first = true;
    for (const AnswerSpan& span : spans) {
      if (std::ssize(line["answers"]) >= top_ || span.probability < least_) break;
      const bool none = span.begin == span.end;
      const std::string answer = context.substr(span.begin, span.end - span.begin);
      const int64_t start = characters(context, span.begin), end = characters(context, span.end);
      line["answers"].push_back(
          {{"answer", answer}, {"score", span.probability}, {"start", none ? Json() : Json(start)}, {"end", none ? Json() : Json(end)}});
      rows_.push_back({first ? question : "", cat(std::ssize(line["answers"])), answer, human_number(span.probability),
                       none ? "" : cat(start), none ? "" : cat(end)});
      first = false;
    }
    line["provenance"] = provenance_;
    lines_ += line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  const std::string& lines() const { return lines_; }
  Table table() const { return {{"text", "rank", "answer", "score", "start", "end"}, rows_}; }

 private:
  int64_t top_;
  double least_;
  Json provenance_;
  std::vector<std::vector<std::string>> rows_;
  std::string lines_;
};

}  // namespace

int PredictTool::answer_questions(Session& session, TextPredictor& predictor, const NamedTexts& given, const std::string& recipe_text) {
  const Recipe& recipe = session.recipe();
  if (given.pairs.empty())
    throw Error(ErrorCode::kUsage, "the model finds answers in a text, but there is none")
        .suggest("--text QUESTION --text-pair TEXT; -o out.safetensors writes the logits of one text");
  const QuestionAnsweringTask usual, *task = recipe.task.as<QuestionAnsweringTask>();
  if (task == nullptr) task = &usual;
  const std::vector<QuestionWindow> windows = windows_of(session, predictor, given);
  if (dry_run_) {
    print("the recipe, its weights and the inputs fit\n");
    return kExitDone;
  }
  AnswerListing listing(recipe, provenance_json(provenance(recipe, recipe_text)));
  BestSpans spans(task->max_answer_length, task->no_answer);
  const auto row = [&](size_t i) { return predictor.row(windows[i].window.tokens, given.names[windows[i].question]); };
  predictor.run(windows.size(), row, [&](size_t i, const TextResult& result) {
    check_stop();
    const auto& [question, window] = windows[i];
    const Tensor &start = result.outputs.at("start_logits"), &end = result.outputs.at("end_logits");
    check_finite_output(start, given.names[question]);
    check_finite_output(end, given.names[question]);
    std::vector<std::pair<uint32_t, uint32_t>> bytes;
    for (size_t t = 0; t < window.count; ++t)
      bytes.emplace_back(window.tokens[window.first + t].begin, window.tokens[window.first + t].end);
    spans.add(start.data_as<float>(), end.data_as<float>(), static_cast<int64_t>(window.first), bytes);
    if (i + 1 < windows.size() && windows[i + 1].question == question) return;
    listing.add(given.texts[question], given.pairs[question], spans.result());
    spans = BestSpans(task->max_answer_length, task->no_answer);
  });
  log(LogLevel::kInfo, cat(human_count(std::ssize(given.texts)), " questions, ", human_count(std::ssize(windows)), " sequences"));
  save_and_print(listing.lines(), listing.table());
  return kExitDone;
}

}  // namespace galley::tools
