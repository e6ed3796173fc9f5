#include "tools/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/base/counted.h"
#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/weights/compare.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"
#include "tools/common/output_file.h"
#include "tools/weights/fetch.h"
#include "tools/weights/values.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;
using Renames = std::vector<std::pair<std::string, std::string>>;

// Metadata that remains valid for weights derived from others.
constexpr std::string_view kKeptMetadata[] = {"galley.recipe",    "galley.pipeline", "galley.categories", "galley.input",
                                              "galley.tokenizer", kQuantizationKey,  kMetricsKey};

Json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

Json parents_of(const std::vector<std::string>& paths) {
  Json parents = Json::array();
  for (const std::string& path : paths) {
    for (const WeightsParent& parent : weights_parents(path)) parents.push_back({{"file", parent.file}, {"digest", parent.digest}});
  }
  return parents;
}

}  // namespace

Command WeightsTool::verb(Command& command, const std::string& name, const std::string& about, int (WeightsTool::*action)() const) {
  Command sub = command.add_verb(name, about);
  sub.on_given([this, action] { action_ = action; });
  return sub;
}

void WeightsTool::add_options(Command& command) {
  command.allow_one_verb();
  verb(command, "ls", "list the models of the zoo and their published weights", &WeightsTool::list)
      .add_option("PATTERN", words_, "only models whose names match this glob or contain this text");
  Command show = verb(command, "show", "print the tensors and metadata of a file, or the registry entry MODEL/NAME", &WeightsTool::show);
  show.add_option("WEIGHTS", words_, "a file, a run, a checkpoint, or MODEL/NAME");
  show.add_flag("-a,--all", all_, "also list tensors that are not weights (e.g. an optimizer's state)");
  Command convert = verb(command, "convert", "write weights as safetensors", &WeightsTool::convert);
  convert.add_option("WEIGHTS", words_, "a file, a run, a checkpoint, or MODEL/NAME");
  convert.add_option("--dtype", dtype_, "dtype of floating-point tensors: f32, f16 or bf16 (default: unchanged)").take_last();
  convert.add_option("--ignore", ignore_, "skip tensors that match (repeatable)").one_word_each();
  Command verify = verb(command, "verify", "check structure, checksums and values of files", &WeightsTool::verify);
  verify.add_option("WEIGHTS", words_, "files, runs, checkpoints, or MODEL/NAME");
  verify.add_flag("--strict", strict_, "fail for files without checksums too");
  Command diff = verb(command, "diff", "compare two sets of weights tensor by tensor", &WeightsTool::diff);
  diff.add_option("A", words_, "files, runs, checkpoints, or MODEL/NAME").type_name("B");
  diff.add_flag("-a,--all", all_, "also list equal tensors");
  Command fetch = verb(command, "fetch", "download published weights (the only use of the network)", &WeightsTool::fetch_files);
  fetch.add_option("MODEL/NAME", words_, "published weights; MODEL alone means its default");
  fetch.add_flag("-n,--dry-run", dry_run_, "print what would be fetched");
  Command average = verb(command, "average", "write the mean of several sets of weights", &WeightsTool::average);
  average.add_option("WEIGHTS", words_, "files, runs or checkpoints with the same tensors");
  Command exported = verb(command, "export", "write a recipe's model with its weights as ONNX (opset 17)", &WeightsTool::export_model);
  exported.add_option("RECIPE", words_, "a recipe file, a built-in name or a RUN folder; then overrides: weights=FILE, key=value")
      .type_name("[key=value ...]");
  exported.add_option("-o,--output", output_, "the ONNX file to write").group("Output").take_last();
  exported.add_option("--batch", batch_, "fixed batch size, or any for a dynamic batch").take_last().show_default();
  exported.add_option("--shape", shape_, "shape of one sample, e.g. 3,192,192 (default: the model's usual input)").take_last();
  exported.add_flag("--no-cache", no_cache_, "a decoder without the keys and values of earlier tokens: it reads whole sequences");
  exported.add_flag("--fold", fold_, "fold batch norms into the preceding weights");
  exported.add_option("--with", with_, "merge this fragment over the recipe (repeatable)").one_word_each();
  add_merge_options(command);
  add_tokenizer_options(command);
  for (Command sub : {convert, average})
    sub.add_option("-o,--output", output_, "the safetensors file to write").group("Output").take_last();
  for (Command sub : {convert, diff})
    sub.add_option("--rename", rename_, "FROM=TO, a rule as in weights.rename for the names of the (second) file (repeatable)")
        .one_word_each();
}

int WeightsTool::run() {
  if (action_ == nullptr)
    throw Error(ErrorCode::kUsage, "no command was given")
        .suggest("use ls, show, convert, verify, diff, fetch, average, merge-lora, export or tokenizer train; --help describes them");
  return (this->*action_)();
}

void WeightsTool::check_word_count(size_t least, size_t most, std::string_view what) const {
  if (words_.size() < least || words_.size() > most)
    fail(ErrorCode::kUsage, "this command takes ", what, ", got ", counted(std::ssize(words_), "argument"));
}

Renames WeightsTool::renames() const {
  Renames rules;
  for (const std::string& rule : rename_) {
    const size_t sign = rule.find('=');
    if (sign == std::string::npos) fail(ErrorCode::kUsage, "--rename must be FROM=TO, got '", rule, "'");
    rules.emplace_back(rule.substr(0, sign), rule.substr(sign + 1));
  }
  return rules;
}

WeightsTool::Opened WeightsTool::open(const std::string& word) const {
  Opened opened;
  opened.word = word;
  const WeightRegistry registry = weight_registry();
  if (word != "default" && registry.is_reference(word)) {
    opened.published = registry.find(word);
    if (!file_exists(opened.published->file)) {
      throw Error(ErrorCode::kInput,
                  cat("the weights ", word, " are not on this machine: the file does not exist: ", opened.published->file))
          .suggest(cat("fetch it with galley-weights fetch ", word, ", or copy ", opened.published->url, " there"));
    }
    opened.files.emplace_back(opened.published->file);
    return opened;
  }
  for (const std::string& path : weights_files(word)) opened.files.emplace_back(path);
  return opened;
}

int WeightsTool::convert() const {
  check_word_count(1, 1, "one set of weights");
  check_output_file(output_, "convert writes a file", "FILE.safetensors");
  const Opened opened = open(words_[0]);
  Renames rules = renames();
  if (opened.published) rules.insert(rules.end(), opened.published->rename.begin(), opened.published->rename.end());
  const DType floats = dtype_.empty() ? DType::kF32 : parse_dtype(dtype_);
  if (floats == DType::kF8E4M3)
    fail(ErrorCode::kUsage, "--dtype ", dtype_,
         " needs a scale for each channel: galley-quantize quantize.weights.dtype=f8_e4m3 writes it");
  if (!is_floating(floats)) fail(ErrorCode::kUsage, "--dtype ", dtype_, " is not a floating-point type");
  Metadata metadata;
  std::vector<TensorSource> sources;
  std::set<std::string> names;
  std::vector<bool> used(ignore_.size(), false);
  for (const WeightsFile& file : opened.files) {
    file.verify();
    for (const std::string_view key : kKeptMetadata) {
      const auto found = file.metadata().find(std::string(key));
      if (found != file.metadata().end()) metadata.insert(*found);
    }
    for (size_t i = 0; i < file.tensors().size(); ++i) {
      const OfferedTensor& tensor = file.tensors()[i];
      const std::string name = apply_renames(tensor.name, rules);
      bool ignored = false;
      for (size_t p = 0; p < ignore_.size(); ++p) {
        if (!selects(ignore_[p], tensor.name) && !selects(ignore_[p], name)) continue;
        used[p] = ignored = true;
      }
      if (ignored) continue;
      GALLEY_CHECK_INPUT(names.insert(name).second, "two tensors would be named '", name, "'");
      GALLEY_CHECK_INPUT(tensor.dtype.has_value(), file.path(), ": tensor '", tensor.name, "' has the dtype ", tensor.dtype_text,
                         ", which Galley does not support; --ignore ", tensor.name, " skips it");
      const DType to = !dtype_.empty() && is_floating(*tensor.dtype) ? floats : *tensor.dtype;
      sources.emplace_back(name, to, tensor.shape, [&file, i, to] {
        const Tensor stored = file.read(i);
        if (stored.dtype() == to) return stored;
        const Tensor cast = stored.to(to);
        const int64_t lost = count_non_finite(cast).count - count_non_finite(stored).count;
        GALLEY_CHECK_INPUT(lost == 0, file.path(), ": tensor '", file.tensors()[i].name, "' has ", lost, " values that ", to,
                           " cannot represent");
        return cast;
      });
    }
  }
  for (size_t p = 0; p < ignore_.size(); ++p) {
    if (!used[p]) fail(ErrorCode::kUsage, "--ignore ", ignore_[p], " matches no tensor");
  }
  if (opened.published) {
    const std::vector<std::string> categories = opened.published->category_names();
    if (!categories.empty()) metadata.emplace("galley.categories", Json(categories).dump());
    if (const std::string pipeline = opened.published->pipeline(); !pipeline.empty()) metadata.emplace("galley.pipeline", pipeline);
  }
  metadata["galley.parents"] = parents_of({opened.published ? opened.published->file : words_[0]}).dump();
  const WrittenFile written = write_safetensors(output_, sources, metadata);
  if (common.format == Format::kJson) {
    print(Json{{"file", output_}, {"tensors", written.tensors.size()}, {"bytes", written.bytes}, {"provenance", provenance_of(words_)}}
              .dump() +
          "\n");
  } else {
    print(Table{{"file", "tensors", "MiB"},
                {{output_, std::to_string(written.tensors.size()), megabytes(static_cast<double>(written.bytes))}}});
  }
  return kExitDone;
}

int WeightsTool::verify() const {
  check_word_count(1, 10'000, "one or more sets of weights");
  Table table{{"file", "format", "tensors", "MiB", "checked %", "not finite", "verdict"}, {}};
  Json rows = Json::array();
  bool certain = true;
  for (const std::string& word : words_) {
    const Opened opened = open(word);
    for (const WeightsFile& file : opened.files) {
      FileCheck check = file.verify();
      if (opened.published && !opened.published->sha256.empty()) {
        check_sha256(file.path(), opened.published->sha256);
        check = {check.value_bytes, check.value_bytes, ""};
      }
      int64_t bad = 0;
      for (size_t i = 0; i < file.tensors().size(); ++i) {
        if (file.tensors()[i].dtype) bad += count_non_finite(file.read(i)).count;
      }
      certain = certain && check.complete();
      const double percent =
          check.value_bytes == 0 ? 100 : 100 * static_cast<double>(check.checked_bytes) / static_cast<double>(check.value_bytes);
      const std::string verdict = check.complete() ? "undamaged" : "cannot tell: " + check.reason;
      table.rows.push_back({file.path(), file.format(), std::to_string(file.tensors().size()),
                            megabytes(static_cast<double>(check.value_bytes)), fixed(percent, 0), std::to_string(bad), verdict});
      rows.push_back({{"file", file.path()},
                      {"format", file.format()},
                      {"tensors", file.tensors().size()},
                      {"value_bytes", check.value_bytes},
                      {"checked_bytes", check.checked_bytes},
                      {"complete", check.complete()},
                      {"reason", check.reason},
                      {"not_finite", bad}});
    }
  }
  if (strict_ && !certain) {
    throw Error(ErrorCode::kInput, "at least one file has no checksums, so damaged values cannot be detected")
        .suggest("galley-weights convert writes safetensors with a digest per tensor");
  }
  if (common.format == Format::kJson) {
    print(Json{{"files", rows}, {"provenance", provenance_of(words_)}}.dump() + "\n");
  } else {
    print(table);
  }
  return kExitDone;
}

int WeightsTool::diff() const {
  check_word_count(2, 2, "two sets of weights");
  const Opened first = open(words_[0]), second = open(words_[1]);
  GALLEY_CHECK_INPUT(first.files.size() == second.files.size(), words_[0], " has ", first.files.size(), " files and ", words_[1], " has ",
                     second.files.size(), ": compare two checkpoints, or two files");
  Table table{{"tensor", "A", "B", "verdict", "different", "max abs", "SQNR dB"}, {}};
  Json rows = Json::array();
  Json renames_json = Json::object();
  bool equal = true;
  std::string proposal;
  int64_t same = 0;
  const auto type_of = [](const OfferedTensor& tensor) { return cat(lower(tensor.dtype_text), " ", tensor.shape); };
  for (size_t f = 0; f < first.files.size(); ++f) {
    const WeightsDifference difference = compare_weights(first.files[f], second.files[f], renames());
    equal = equal && difference.equal();
    for (const TensorDifference& tensor : difference.both) {
      const bool same_type = tensor.first.dtype_text == tensor.second.dtype_text;
      const bool is_same = tensor.comparable && tensor.different == 0 && same_type;
      const std::string verdict = is_same                                                       ? "same"
                                  : !(tensor.first.shape == tensor.second.shape)                ? "shape"
                                  : !tensor.comparable || (tensor.different == 0 && !same_type) ? "dtype"
                                                                                                : "differs";
      same += is_same;
      rows.push_back({{"name", tensor.name},
                      {"verdict", verdict},
                      {"a", type_of(tensor.first)},
                      {"b", type_of(tensor.second)},
                      {"b_name", tensor.second.name}});
      if (tensor.comparable)
        rows.back().update(
            {{"different", tensor.different}, {"max_abs", number_json(tensor.max_abs)}, {"sqnr_db", number_json(tensor.sqnr_db)}});
      if (is_same && !all_) continue;
      char largest[32];
      std::snprintf(largest, sizeof largest, "%.3g", tensor.max_abs);
      table.rows.push_back({tensor.name, type_of(tensor.first), type_of(tensor.second), verdict,
                            tensor.comparable ? std::to_string(tensor.different) : "-", tensor.comparable ? largest : "-",
                            tensor.comparable ? fixed(tensor.sqnr_db, 1) : "-"});
    }
    for (const OfferedTensor& tensor : difference.only_first) {
      table.rows.push_back({tensor.name, type_of(tensor), "-", "only in A", "-", "-", "-"});
      rows.push_back({{"name", tensor.name}, {"verdict", "only in A"}, {"a", type_of(tensor)}, {"b", nullptr}});
    }
    for (const OfferedTensor& tensor : difference.only_second) {
      table.rows.push_back({tensor.name, "-", type_of(tensor), "only in B", "-", "-", "-"});
      rows.push_back({{"name", tensor.name}, {"verdict", "only in B"}, {"a", nullptr}, {"b", type_of(tensor)}});
    }
    for (const auto& [from, to] : difference.proposed) {
      renames_json[from] = to;
      proposal += cat("\n    ", Json(from).dump(), ": ", Json(to).dump());
    }
  }
  if (common.format == Format::kJson) {
    print(
        Json{{"equal", equal}, {"same", same}, {"tensors", rows}, {"rename", renames_json}, {"provenance", provenance_of(words_)}}.dump() +
        "\n");
    return kExitDone;
  }
  if (!table.rows.empty() || common.format == Format::kCsv) print(table);
  log(LogLevel::kInfo,
      equal ? cat("all ", same, " tensors are the same") : cat(same, " tensors are the same, ", table.rows.size(), " are listed"));
  if (!proposal.empty())
    log(LogLevel::kInfo,
        cat("these rules map names of B to names of A (--rename FROM=TO, or in a recipe's weights):\n  rename:", proposal));
  return kExitDone;
}

int WeightsTool::average() const {
  check_word_count(2, 10'000, "two or more sets of weights");
  check_output_file(output_, "average writes a file", "FILE.safetensors");
  std::vector<Opened> opened;
  for (const std::string& word : words_) opened.push_back(open(word));
  // Column f holds file f of every set (a checkpoint has several files).
  std::vector<std::vector<WeightsFile>> columns(opened[0].files.size());
  std::vector<std::string> paths;
  for (Opened& set : opened) {
    GALLEY_CHECK_INPUT(set.files.size() == columns.size(), set.word, " has ", set.files.size(), " files and ", opened[0].word, " has ",
                       columns.size(), ": average checkpoints, or files");
    for (size_t f = 0; f < columns.size(); ++f) {
      set.files[f].verify();
      GALLEY_CHECK_INPUT(!set.files[f].metadata().contains(std::string(kQuantizationKey)), set.files[f].path(),
                         " contains quantized weights, which cannot be averaged because their scales differ");
      paths.push_back(set.files[f].path());
      columns[f].push_back(std::move(set.files[f]));
    }
  }
  std::vector<TensorSource> sources;
  Metadata metadata;
  for (const std::vector<WeightsFile>& column : columns) {
    for (TensorSource& source : average_weights(column)) sources.push_back(std::move(source));
    for (const std::string_view key : kKeptMetadata) {
      const auto found = column[0].metadata().find(std::string(key));
      if (found == column[0].metadata().end()) continue;
      const bool shared = std::all_of(column.begin(), column.end(), [&](const WeightsFile& file) {
        const auto other = file.metadata().find(found->first);
        return other != file.metadata().end() && other->second == found->second;
      });
      if (shared) metadata.insert(*found);
    }
  }
  metadata["galley.parents"] = parents_of(paths).dump();
  const WrittenFile written = write_safetensors(output_, sources, metadata);
  if (common.format == Format::kJson) {
    print(Json{{"file", output_},
               {"averaged", words_.size()},
               {"tensors", written.tensors.size()},
               {"bytes", written.bytes},
               {"provenance", provenance_of(words_)}}
              .dump() +
          "\n");
  } else {
    print(Table{
        {"file", "averaged", "tensors", "MiB"},
        {{output_, std::to_string(words_.size()), std::to_string(written.tensors.size()), megabytes(static_cast<double>(written.bytes))}}});
  }
  return kExitDone;
}

int WeightsTool::fetch_files() const {
  check_word_count(1, 1000, "one or more MODEL/NAME");
  const WeightRegistry registry = weight_registry();
  std::vector<PublishedWeights> wanted;
  for (const std::string& word : words_) wanted.push_back(registry.find(word));
  Table table{{"weights", "file", "result"}, {}};
  Json rows = Json::array();
  Progress progress(common.progress);
  for (const PublishedWeights& entry : wanted) {
    std::string result = file_exists(entry.file) ? "here already" : "would be fetched";
    if (entry.url.empty()) {
      GALLEY_CHECK_INPUT(file_exists(entry.file), "the weights ", entry.id(), " have no url, and the file does not exist: ", entry.file);
    } else if (!dry_run_) {
      if (entry.sha256.empty()) log(LogLevel::kWarning, cat(entry.id(), " is published without a hash: the download cannot be verified"));
      FetchRequest request{entry.url, entry.file, entry.sha256, {}};
      request.progress = [&](int64_t done, int64_t total) {
        const double fraction = total > 0 ? static_cast<double>(done) / static_cast<double>(total) : -1;
        const Json event{{"weights", entry.id()}, {"bytes", done}, {"total_bytes", total}};
        progress.update(fraction,
                        cat(entry.id(), "  ", megabytes(static_cast<double>(done)),
                            total > 0 ? cat(" of ", megabytes(static_cast<double>(total))) : "", " MiB"),
                        event.dump());
      };
      switch (fetch(request)) {
        case FetchResult::kHere: result = "here already"; break;
        case FetchResult::kFetched: result = "fetched"; break;
        case FetchResult::kResumed: result = "fetched (resumed)"; break;
      }
      progress.clear();
      const WeightsFile readable(entry.file);  // detect unreadable formats now
    }
    table.rows.push_back({entry.id(), entry.file, result});
    rows.push_back({{"weights", entry.id()},
                    {"file", entry.file},
                    {"url", entry.url},
                    {"sha256", entry.sha256},
                    {"megabytes", entry.megabytes},
                    {"result", result}});
  }
  if (common.format == Format::kJson) {
    print(Json{{"files", rows}, {"provenance", provenance_of(words_)}}.dump() + "\n");
  } else {
    print(table);
  }
  return kExitDone;
}

std::vector<std::string> WeightsTool::complete(const std::vector<std::string>& words) const {
  const std::string word = words.empty() ? "" : words.back();
  std::vector<std::string> found;
  const auto offer = [&](const std::string& candidate) {
    if (candidate.starts_with(word)) found.push_back(candidate);
  };
  if (words.size() <= 1) {
    for (const char* name : {"ls", "show", "convert", "verify", "diff", "fetch", "average", "merge-lora", "export", "tokenizer"})
      offer(name);
    return found;
  }
  if (words[0] == "tokenizer") {
    if (words.size() == 2) offer("train");
    return found;
  }
  const WeightRegistry registry = weight_registry();
  const size_t slash = word.find('/');
  if (slash != std::string::npos && registry.has(word.substr(0, slash))) {
    for (const PublishedWeights& entry : registry.of(word.substr(0, slash))) offer(entry.id());
  } else if (!word.starts_with("-") && slash == std::string::npos) {
    for (const std::string& model : registry.models()) offer(words[0] == "ls" ? model : model + "/");
  }
  return found;
}

}  // namespace galley::tools
