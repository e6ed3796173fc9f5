#include "tools/predict/predict.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include <CLI/CLI.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/data/source.h"
#include "libcore/runtime/parameter_store.h"
#include "libcore/weights/load.h"
#include "tools/common/output_file.h"
#include "tools/predict/draw.h"

namespace galley::tools {
namespace {

struct Ranked {
  int64_t index;
  double score;
};

/// Classes of one row of logits, best first (equal scores: lower index first), by softmax. Throws (kNumeric) where a logit is not finite.
std::vector<Ranked> rank_classes(const float* logits, int64_t classes, const PredictSection& wanted, const std::string& sample) {
  double total = 0;
  const double highest = *std::max_element(logits, logits + classes);
  std::vector<Ranked> ranked;
  for (int64_t i = 0; i < classes; ++i) {
    if (!std::isfinite(logits[i])) {
      throw Error(ErrorCode::kNumeric, cat(sample, ": the model's output ", i, " is ", logits[i])).suggest("galley-weights verify looks for damage in the weights");
    }
    ranked.push_back({i, std::exp(logits[i] - highest)});
    total += ranked.back().score;
  }
  for (Ranked& item : ranked) item.score /= total;
  const auto shown = std::min<size_t>(static_cast<size_t>(wanted.top), ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<int64_t>(shown), ranked.end(),
                    [](const Ranked& a, const Ranked& b) { return a.score != b.score ? a.score > b.score : a.index < b.index; });
  ranked.resize(shown);
  std::erase_if(ranked, [&](const Ranked& item) { return item.score < wanted.min_score; });
  return ranked;
}

/// Collects the rows of all batches, for the output file.
class Collected {
 public:
  Collected(const Predictor& predictor, int64_t samples) : names_(predictor.outputs()) {
    for (size_t i = 0; i < names_.size(); ++i) {
      const TensorType& type = predictor.type(i);
      Shape shape = type.shape;
      GALLEY_CHECK(shape.rank() > 0, "--capture: ", names_[i], " gives a scalar, not a row a sample");
      shape[0] = samples;
      tensors_.emplace_back(type.dtype, shape);
    }
  }
  void add(const PredictedBatch& batch) {
    for (size_t row = 0; row < batch.indices.size(); ++row) {
      if (batch.indices[row] < 0) continue;
      for (size_t i = 0; i < tensors_.size(); ++i) {
        const Tensor& from = batch.outputs[i];
        const int64_t bytes = from.bytes() / from.shape()[0];
        std::memcpy(static_cast<std::byte*>(tensors_[i].data()) + rows_ * bytes, static_cast<const std::byte*>(from.data()) + static_cast<int64_t>(row) * bytes,
                    static_cast<size_t>(bytes));
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

/// Where the annotated image of a sample goes: its file's name, with a number where two have the same.
std::string drawing_path(const std::string& folder, const std::string& sample, std::set<std::string>& taken) {
  const std::string stem = std::filesystem::path(sample).stem().string();
  std::string name = stem;
  for (int number = 2; !taken.insert(name).second; ++number) name = cat(stem, "-", number);
  return folder + "/" + name + ".png";
}

std::string score_text(double score) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", score);
  return text;
}

}  // namespace

void PredictTool::add_options(CLI::App& app) {
  RecipeTool::add_options(app);
  app.add_option("--tensors", tensors_, "predict the rows of `input` in this safetensors file, as they are (no pipeline)")->type_name("FILE")->group("Input")->take_last();
  app.add_option("--batch", batch_, "samples a pass")->check(CLI::Range(1, 1 << 20))->group("Machine")->take_last()->capture_default_str();
  app.add_option("--replicas", replicas_, "passes side by side, each on its share of the threads; auto: one a thread")->group("Machine")->take_last()->capture_default_str();
  app.add_option("--on-error", on_error_, "an image that cannot be read: fail, or skip (counted)")
      ->check(CLI::IsMember({"fail", "skip"}))->group("Input")->take_last()->capture_default_str();
  app.add_option("--capture", capture_, "also write the results of these modules to -o (a glob over paths; repeatable)")->type_name("GLOB")->group("Output")->allow_extra_args(false);
  app.add_option("--draw", draw_, "write each image with its labels to this folder, as PNG")->type_name("DIR")->group("Output")->take_last();
}

std::shared_ptr<const Source> PredictTool::open_inputs(const Session& session) const {
  if (!tensors_.empty()) {
    if (!inputs_.empty()) throw Error(ErrorCode::kUsage, cat("both --tensors and an image were given: ", inputs_[0])).suggest("give one of them");
    check_output_file(output_, "--tensors gives tensors", "out.safetensors");
    if (!draw_.empty()) throw Error(ErrorCode::kUsage, "--draw draws on images, not on tensors");
    return open_arrays(SafetensorsFile(tensors_).read("input"), tensors_);
  }
  if (inputs_.empty()) throw Error(ErrorCode::kUsage, "nothing to predict was named").suggest("name images, folders or archives, or --tensors FILE");
  if (!capture_.empty() || !output_.empty()) check_output_file(output_, "--capture writes tensors", "out.safetensors");
  const std::vector<int64_t>& shape = session.info().input_shape;
  return open_images(inputs_, shape.size() == 3 && shape[0] == 1);
}

int PredictTool::run_recipe(LoadedRecipe& loaded) {
  Recipe& recipe = loaded.recipe;
  make_paths_absolute(recipe);
  require_weights(loaded);
  const bool images = tensors_.empty();
  Session session(recipe);
  const std::shared_ptr<const Source> source = open_inputs(session);
  const std::vector<Component> pipeline = images ? session.prediction_pipeline() : std::vector<Component>();
  const int64_t replicas = replicas_ == "auto" ? session.threads() : parse_count(replicas_);
  Predictor predictor(session, source, pipeline, {.batch = batch_, .replicas = replicas, .capture = capture_, .skip_damaged = on_error_ == "skip"});
  ParameterStore store;
  store.declare(predictor.program());
  session.initialize(predictor.parameters(), store);
  if (images && session.classes() == 0 && output_.empty()) {
    throw Error(ErrorCode::kRecipe, "the model does not classify: its results are tensors").key("model").suggest("-o out.safetensors writes them");
  }
  log(LogLevel::kInfo, cat(source->describe(), ", memory ", human_bytes(predictor.planned_bytes())));
  if (dry_run_) {
    print("the recipe, its weights and the inputs fit\n");
    return kExitDone;
  }
  if (!draw_.empty()) make_folders(draw_);

  const std::vector<std::string> categories = session.classes() > 0 ? session.prediction_categories() : std::vector<std::string>();
  const auto label_of = [&](int64_t index) { return index < static_cast<int64_t>(categories.size()) ? categories[static_cast<size_t>(index)] : cat(index); };
  const std::string recipe_text = dump_recipe(recipe, DumpKind::kFull);
  const nlohmann::ordered_json who = provenance_json(provenance(recipe, recipe_text));
  std::unique_ptr<Collected> collected;
  if (!output_.empty()) collected = std::make_unique<Collected>(predictor, source->size());
  const bool ranks = images && session.classes() > 0;
  Table table{{"file", "rank", "index", "label", "score"}, {}};
  std::string lines;
  std::set<std::string> drawn;
  int64_t done = 0;
  const auto began = std::chrono::steady_clock::now();
  const int64_t skipped = predictor.run(store, [&](const PredictedBatch& batch) {
    if (collected) collected->add(batch);
    for (size_t row = 0; row < batch.indices.size(); ++row) {
      if (batch.indices[row] < 0) continue;
      ++done;
      if (!ranks) continue;
      const std::string sample = source->sample_name(batch.indices[row]);
      const Tensor& logits = batch.outputs[0];
      const int64_t classes = logits.elements() / logits.shape()[0];
      const std::vector<Ranked> top = rank_classes(logits.data_as<float>() + static_cast<int64_t>(row) * classes, classes, recipe.predict, sample);
      nlohmann::ordered_json json{{"file", sample}, {"top", nlohmann::ordered_json::array()}};
      std::vector<std::string> drawing;
      for (size_t i = 0; i < top.size(); ++i) {
        const std::string label = label_of(top[i].index);
        json["top"].push_back({{"index", top[i].index}, {"label", label}, {"score", top[i].score}});
        table.rows.push_back({i == 0 || common.format != Format::kTable ? sample : "", cat(i + 1), cat(top[i].index), label, score_text(top[i].score)});
        drawing.push_back(score_text(top[i].score) + " " + label);
      }
      json["provenance"] = who;
      lines += json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
      if (!draw_.empty()) {
        const Sample original = source->read(batch.indices[row]);
        GALLEY_ASSERT(original.image() != nullptr);
        write_png(drawing_path(draw_, sample, drawn), draw_labels(*original.image(), drawing));
      }
    }
  });
  const double wall_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (done == 0) throw Error(ErrorCode::kNumeric, cat("none of the ", source->size(), " samples could be read"));
  if (collected) collected->write(output_, {{"galley.recipe", recipe_text}});
  log(LogLevel::kInfo, cat(human_count(done), " samples in ", human_seconds(wall_s), ", ", human_number(static_cast<double>(done) / wall_s), " a second",
                           skipped > 0 ? cat(", ", skipped, " skipped") : ""));
  if (!ranks) return kExitDone;
  for (const auto& [format, file] : common.save) write_file(file, format == Format::kJson ? lines : render(table, format));
  if (common.format == Format::kJson) {
    print(lines);
  } else {
    print(table);
  }
  return kExitDone;
}

}  // namespace galley::tools
