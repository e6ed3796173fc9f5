#include "tools/predict/predict.h"

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/data/sources.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/weights/load.h"
#include "tools/common/output_file.h"
#include "tools/common/signals.h"
#include "tools/predict/input_tensors.h"
#include "tools/predict/listing.h"

namespace galley::tools {
namespace {

/// Collects the rows of all batches, for the output file.
class Collected {
 public:
  Collected(const Predictor& predictor, int64_t samples) : names_(predictor.outputs()) {
    for (size_t i = 0; i < names_.size(); ++i) {
      const TensorType& type = predictor.type(i);
      Shape shape = type.shape;
      GALLEY_CHECK(shape.rank() > 0, "--capture: ", names_[i], " gives a scalar, not one row per sample");
      shape[0] = samples;
      tensors_.emplace_back(type.dtype, shape);
    }
  }
  void add(const PredictedBatch& batch) {
    for (size_t row = 0; row < batch.indices.size(); ++row) {
      if (batch.unreadable.contains(static_cast<int64_t>(row))) continue;
      for (size_t i = 0; i < tensors_.size(); ++i) {
        const Tensor& from = batch.outputs[i];
        const int64_t bytes = from.bytes() / from.shape()[0];
        std::memcpy(static_cast<std::byte*>(tensors_[i].data()) + rows_ * bytes,
                    static_cast<const std::byte*>(from.data()) + static_cast<int64_t>(row) * bytes, static_cast<size_t>(bytes));
      }
      ++rows_;
    }
  }
  void write(const std::string& path, const Metadata& metadata) const {
    std::vector<TensorSource> sources;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      Shape shape = tensors_[i].shape();
      shape[0] = rows_;
      sources.emplace_back(names_[i], Tensor(tensors_[i].dtype(), shape, {}, tensors_[i].storage()));
    }
    write_safetensors(path, sources, metadata);
  }
  int64_t rows() const { return rows_; }

 private:
  std::vector<std::string> names_;
  std::vector<Tensor> tensors_;
  int64_t rows_ = 0;
};

/// The rows of a sample among a batch's outputs.
std::map<std::string, Tensor> results_of(const Predictor& predictor, const PredictedBatch& batch, size_t row) {
  std::map<std::string, Tensor> results;
  for (size_t i = 0; i < batch.outputs.size(); ++i) {
    const Tensor& output = batch.outputs[i];
    Shape shape = output.shape();
    if (shape.rank() == 0) continue;
    const int64_t bytes = output.bytes() / shape[0];
    shape[0] = 1;
    const Tensor mine(output.dtype(), shape, {}, output.storage(), static_cast<int64_t>(row) * bytes);
    results.emplace(predictor.outputs()[i], mine);
    if (i == 0) results.emplace("output", mine);  // what the task reads, whatever the model calls it
  }
  return results;
}

}  // namespace

void PredictTool::add_options(Command& command) {
  RecipeTool::add_options(command);
  command.add_option("--tensors", tensors_, "predict the rows of `input` in this safetensors file, without a pipeline")
      .type_name("FILE")
      .group("Input")
      .take_last();
  command.add_option("--prompt", text_.prompts, "continue this text (repeatable)").type_name("TEXT").group("Input").one_word_each();
  command.add_option("--prompts", text_.prompts_file, "continue each line of this file").type_name("FILE").group("Input").take_last();
  command.add_option("--chat", text_.chats, "answer this message by the model's chat template (repeatable: each alone)")
      .type_name("TEXT")
      .group("Input")
      .one_word_each();
  command.add_option("--system", text_.system, "the system message of the conversations of --chat and --interactive")
      .type_name("TEXT")
      .group("Input")
      .take_last();
  command
      .add_flag("--interactive", text_.interactive,
                "answer each line of standard input in one conversation or, without a chat template, continue it")
      .group("Input");
  command.add_flag("--show-prompt", text_.show_prompt, "print the exact text and ids of the prompts without continuing them")
      .group("Output");
  command.add_option("--tokenize", text_.tokenize, "print the ids and pieces of this text").type_name("TEXT").group("Input");
  command.add_option("--detokenize", text_.detokenize, "print the text of these ids, separated by commas (repeatable)")
      .type_name("IDS")
      .group("Input")
      .one_word_each();
  command.add_option("--text", text_.texts, "predict these texts").type_name("TEXT").group("Input");
  command.add_option("--text-file", text_.texts_file, "predict each line of this file").type_name("FILE").group("Input").take_last();
  command.add_option("--text-pair", text_.pairs, "the second text of each, for models of pairs; of a question, the text with its answer")
      .type_name("TEXT")
      .group("Input");
  command.add_option("--text-pair-file", text_.pairs_file, "the second texts of --text-file, a line each")
      .type_name("FILE")
      .group("Input")
      .take_last();
  command.add_flag("--embed", text_.embed, "write the vector of each text, of an encoder without its head (model.pooling, model.normalize)")
      .group("Output");
  command.add_option("--batch", batch_, "samples per pass").in_range(1, 1 << 20).group("Machine").take_last().show_default();
  command.add_option("--replicas", replicas_, "number of concurrent passes, each on a part of the threads; auto: one per thread")
      .group("Machine")
      .take_last()
      .show_default();
  command.add_option("--on-error", on_error_, "a file that cannot be read: report it in its line, exit 4 at the end; fail at once; skip it")
      .one_of({"report", "fail", "skip"})
      .group("Input")
      .take_last()
      .show_default();
  command.add_option("--capture", capture_, "also write the results of these modules to -o (a glob over paths; repeatable)")
      .type_name("GLOB")
      .group("Output")
      .one_word_each();
  command.add_option("--draw", draw_, "write each image with its labels to this folder").type_name("DIR").group("Output").take_last();
  command.add_option("--draw-format", draw_format_, "of these images: png, or jpeg with quality 95; masks are always PNG")
      .one_of({"png", "jpeg"})
      .group("Output")
      .take_last()
      .show_default();
}

std::shared_ptr<const Source> PredictTool::open_inputs(const Session& session) const {
  if (!tensors_.empty()) {
    if (!inputs_.empty())
      throw Error(ErrorCode::kUsage, cat("both --tensors and an image were given: ", inputs_[0])).suggest("give one of them");
    check_output_file(output_, "--tensors gives tensors", "out.safetensors");
    std::error_code ignored;
    if (std::filesystem::equivalent(tensors_, output_, ignored))
      throw Error(ErrorCode::kUsage, cat("-o ", output_, " would replace the input of --tensors")).suggest("name another file");
    if (!draw_.empty()) throw Error(ErrorCode::kUsage, "--draw draws on images, not on tensors");
    return open_arrays(input_tensors(session, tensors_), tensors_);
  }
  if (inputs_.empty()) {
    const bool language = session.info().output == ModelOutput::kTokens;
    throw Error(ErrorCode::kUsage, "nothing to predict was named")
        .suggest(language                                 ? "--prompt TEXT, or --tensors FILE"
                 : session.info().max_length > 0          ? "--text TEXT, --text-file FILE or --tensors FILE"
                 : session.info().input_shape.size() == 4 ? "name folders of frames, or --tensors FILE"
                                                          : "name images, folders or archives, or --tensors FILE");
  }
  if (!capture_.empty() || !output_.empty()) check_output_file(output_, "--capture writes tensors", "out.safetensors");
  if (session.info().output == ModelOutput::kFlow) return open_image_pairs(inputs_);
  const std::vector<int64_t>& shape = session.info().input_shape;
  if (shape.size() == 4) {  // a clip
    const std::optional<Split>& val = session.recipe().data.val;
    return open_clips(inputs_, shape[1], val ? val->source : Component(), on_error_ != "fail" && !dry_run_);
  }
  return open_images(inputs_, shape.size() == 3 && shape[0] == 1, on_error_ != "fail" && !dry_run_);
}

int PredictTool::run_text(LoadedRecipe& loaded) {
  if (text_.predicts())
    throw Error(ErrorCode::kUsage, "--text predicts whole texts; it does not go together with --prompt, --chat or --tokenize")
        .suggest("give one of them");
  if (common.format != Format::kTable && common.format != Format::kJson)
    throw Error(ErrorCode::kUsage, "texts are printed as they stand or as JSON, not as a table").suggest("--format json");
  for (const auto& [format, file] : common.save) {
    if (format != Format::kJson) throw Error(ErrorCode::kUsage, "--save of texts is JSON").suggest(cat("--save json:", file));
  }
  check_outputs({});
  if (text_.show_prompt && !text_.continues())
    throw Error(ErrorCode::kUsage, "--show-prompt needs a prompt").suggest("--prompt TEXT, --prompts FILE, --chat TEXT or --interactive");
  if (!text_.system.empty() && text_.chats.empty() && !text_.interactive)
    throw Error(ErrorCode::kUsage, "--system needs a conversation").suggest("--chat TEXT or --interactive");
  if (!inputs_.empty() || !tensors_.empty())
    throw Error(ErrorCode::kUsage, cat("both text and a file were given: ", inputs_.empty() ? tensors_ : inputs_[0]))
        .suggest("give one of them");
  if (!output_.empty() || !capture_.empty() || !draw_.empty())
    throw Error(ErrorCode::kUsage, "-o, --capture and --draw do not apply to text").suggest("--format json prints all results");
  Session session(loaded.recipe);
  const std::string recipe_text = dump_recipe(loaded.recipe, DumpKind::kFull);
  std::string saved;
  TextOutput output{.json = common.format == Format::kJson,
                    .provenance = provenance_json(provenance(loaded.recipe, recipe_text)).dump(),
                    .print = [this](const std::string& text) { print(text); }};
  if (!common.save.empty()) output.save = [&](const std::string& line) { saved += line; };
  const int code = print_text(session, output);
  if (!dry_run_) {
    for (const auto& [format, file] : common.save) write_file(file, saved);
  }
  return code;
}

int PredictTool::print_text(Session& session, const TextOutput& output) const {
  if (text_.shows_tokens()) {
    if (session.tokenizer() == nullptr) throw Error(ErrorCode::kRecipe, "the recipe has no tokenizer").key("data.tokenizer");
    show_tokens(*session.tokenizer(), text_, output);
  }
  if (!text_.continues()) return kExitDone;
  if (dry_run_) {
    check_continuation(session, text_, batch_, output);
    return kExitDone;
  }
  return continue_prompts(session, text_, batch_, output);
}

int PredictTool::run() {
  if (!text_.embed) return RecipeTool::run();
  if (!text_.predicts()) throw Error(ErrorCode::kUsage, "--embed needs texts").suggest("--text TEXT or --text-file FILE");
  overrides_.push_back("model.head=embedding");
  try {
    return RecipeTool::run();
  } catch (const Error& error) {
    if (error.key() != "model.head") throw;
    throw Error(ErrorCode::kUsage, "--embed: the model gives no vectors of texts").suggest("an encoder: bert, roberta, distilbert ...");
  }
}

std::vector<Component> PredictTool::pipeline_of_images(const Session& session) const {
  try {
    return session.prediction_pipeline();
  } catch (const Error&) {
    // A file that does not exist is the simpler mistake, and reading it reports it.
    for (const std::string& path : inputs_) {
      if (!file_exists(path)) const InputFile missing(path);
    }
    throw;
  }
}

int PredictTool::run_recipe(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  make_paths_absolute(recipe);
  if (text_.any()) {
    if (text_.continues() && !text_.show_prompt) require_weights(loaded);
    return run_text(loaded);
  }
  require_weights(loaded);
  if (text_.predicts()) return run_whole_texts(loaded);
  const bool images = tensors_.empty();
  Session session(recipe);
  const bool language = session.info().output == ModelOutput::kTokens;
  if (!inputs_.empty() && images && (language || session.info().max_length > 0)) {
    throw Error(ErrorCode::kUsage, cat("the model takes text, but a file was given: ", inputs_[0]))
        .suggest(language ? "--prompt TEXT continues a text, --prompts FILE each line of a file"
                          : "--text TEXT predicts a text, --text-file FILE each line of a file");
  }
  const std::shared_ptr<const Source> source = open_inputs(session);
  const std::vector<Component> pipeline = images ? pipeline_of_images(session) : std::vector<Component>();
  const Task* task = images ? session.task_or_null() : nullptr;
  std::unique_ptr<Presenter> presenter;
  if (task != nullptr)
    presenter = task->presenter({.categories = session.prediction_categories(),
                                 .top = recipe.predict.top,
                                 .min_score = recipe.predict.min_score,
                                 .threshold = recipe.predict.threshold});
  if (images && presenter == nullptr && output_.empty()) {
    throw Error(ErrorCode::kRecipe, task == nullptr
                                        ? "the model has no task that says what its results mean: they are tensors"
                                        : cat("results of this shape have no text in the task ", task->name(), ": they are tensors"))
        .key("task")
        .suggest(cat("-o out.safetensors writes them", task == nullptr ? "; or name the task, e.g. task=classification" : ""));
  }
  if (!draw_.empty() && presenter == nullptr)
    throw Error(ErrorCode::kUsage, "--draw needs a task that presents images; these results are tensors");
  const std::string recipe_text = dump_recipe(recipe, DumpKind::kFull);
  Listing listing(presenter.get(), common.format != Format::kTable, provenance_json(provenance(recipe, recipe_text)));
  if (common.format == Format::kJson) listing.give_lines_to([this](const std::string& line) { print(line); });
  if (images && on_error_ == "report") {
    const std::vector<std::string> reasons = unreadable_start(*source, pipeline);
    if (static_cast<int64_t>(reasons.size()) == source->size()) {
      // No sample says for which sizes the model is compiled.
      for (size_t i = 0; i < reasons.size(); ++i) listing.add_unreadable(source->sample_name(static_cast<int64_t>(i)), reasons[i]);
      return finish(listing, source->size());
    }
  }
  const int64_t replicas = replicas_ == "auto" ? session.threads() : parse_count(replicas_);
  Predictor predictor(session, source, pipeline,
                      {.batch = batch_, .replicas = replicas, .capture = capture_, .keep_going = on_error_ != "fail"});
  session.initialize(predictor.parameters(), predictor.store(), predictor.sample_shape());
  log(LogLevel::kInfo, cat(source->describe(), ", memory ", human_bytes(predictor.planned_bytes())));
  if (dry_run_) {
    print("the recipe, its weights and the inputs fit\n");
    return kExitDone;
  }
  if (!draw_.empty()) {
    try {
      make_folders(draw_);
    } catch (Error& error) {
      throw error.context(" (--draw)");
    }
    listing.draw_into(draw_, draw_format_ == "jpeg" ? DrawFormat::kJpeg : DrawFormat::kPng, *source);
  }
  if (images) listing.place_by(Pipeline(items_for(pipeline, source->fields())));
  try {
    predict(*source, predictor, recipe_text, listing);
  } catch (const Error& error) {
    // An index of another tensor than the tokens, e.g. token_type_ids.
    if (images || error.code() != ErrorCode::kInput || !error.place().file.empty()) throw;
    throw Error(error).at({.file = tensors_});
  }
  return finish(listing, source->size());
}

void PredictTool::predict(const Source& source, Predictor& predictor, const std::string& recipe_text, Listing& listing) const {
  std::unique_ptr<Collected> collected;
  if (!output_.empty()) collected = std::make_unique<Collected>(predictor, source.size());
  int64_t done = 0, skipped = 0;
  const auto began = std::chrono::steady_clock::now();
  predictor.run([&](const PredictedBatch& batch) {
    check_stop();
    if (collected) collected->add(batch);
    for (size_t row = 0; row < batch.indices.size(); ++row) {
      const auto unreadable = batch.unreadable.find(static_cast<int64_t>(row));
      if (unreadable != batch.unreadable.end()) {
        if (on_error_ == "report") {
          listing.add_unreadable(source.sample_name(batch.indices[row]), unreadable->second);
        } else if (skipped++ == 0) {
          log(LogLevel::kWarning, cat("skipped: ", unreadable->second, " (others are counted)"));
        }
        continue;
      }
      ++done;
      if (!listing.presents()) continue;
      const auto note = batch.irregular.find(static_cast<int64_t>(row));
      listing.add(source, batch.indices[row], results_of(predictor, batch, row), note == batch.irregular.end() ? "" : note->second);
    }
  });
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (done == 0 && listing.unreadable() == 0)
    throw Error(ErrorCode::kInput,
                source.size() == 1 ? "the sample could not be read" : cat("none of the ", source.size(), " samples could be read"));
  if (collected) collected->write(output_, {{"galley.recipe", recipe_text}});
  log(LogLevel::kInfo, cat(counted(done, "sample"), " in ", human_seconds(wall_s), ", ", human_number(static_cast<double>(done) / wall_s),
                           " per second", skipped > 0 ? cat(", ", skipped, " skipped") : ""));
}

int PredictTool::finish(const Listing& listing, int64_t samples) const {
  const int code = listing.unreadable() > 0 ? static_cast<int>(ErrorCode::kInput) : kExitDone;
  if (listing.gives_lines()) {
    save(listing.lines(), listing.table());
  } else if (listing.presents() || code != kExitDone) {
    save_and_print(listing.lines(), listing.table());
  }
  if (code != kExitDone) log(LogLevel::kWarning, cat(listing.unreadable(), " of ", counted(samples, "file"), " could not be read"));
  return code;
}

}  // namespace galley::tools
