// galley-weights show.

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/units.h"
#include "libcore/weights/load.h"
#include "libcore/weights/quantization_plan.h"
#include "tools/weights/values.h"
#include "tools/weights/weights.h"

namespace galley::tools {
namespace {

using Json = nlohmann::ordered_json;

Json shape_json(const Shape& shape) { return std::vector<int64_t>(shape.begin(), shape.end()); }

int64_t bytes_of(const OfferedTensor& tensor) { return tensor.dtype ? tensor.shape.elements() * dtype_size(*tensor.dtype) : 0; }

/// Lines such as "top1 91.910 float, 91.920 quantized", one per metric; empty if the text is not galley.metrics.
std::vector<std::string> metrics_lines(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> lines;
  if (!json.is_object() || !json.contains("float") || !json.contains("quantized")) return lines;
  for (const auto& [metric, value] : json["float"].items()) {
    if (json["quantized"].contains(metric))
      lines.push_back(cat(metric, " ", value.dump(), " float, ", json["quantized"][metric].dump(), " quantized"));
  }
  return lines;
}

/// The parent files, one line each; empty if the text is not galley.parents.
std::vector<std::string> parents_lines(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> lines;
  if (!json.is_array()) return lines;
  for (const Json& parent : json) {
    if (parent.is_object() && parent.contains("file") && parent.contains("digest"))
      lines.push_back(cat(parent["file"].dump(), " ", parent["digest"].dump()));
  }
  return lines;
}

/// Describes the quantization: from Galley's plan if there is one, otherwise the dtype of L.weight for each L.weight_scale and whether
/// there is a scale per channel.
std::string scheme_of(const WeightsFile& file) {
  if (const auto plan = file.metadata().find(std::string(kQuantizationKey)); plan != file.metadata().end())
    return parse_plan(plan->second, file.path()).str();
  std::map<std::string, int64_t> layers;
  std::map<std::string, const OfferedTensor*> by_name;
  for (const OfferedTensor& tensor : file.tensors()) by_name[tensor.name] = &tensor;
  for (const auto& [name, scale] : by_name) {
    constexpr std::string_view kEnding = ".weight_scale";
    if (!name.ends_with(kEnding)) continue;
    const auto weight = by_name.find(name.substr(0, name.size() - kEnding.size()) + ".weight");
    if (weight != by_name.end())
      ++layers[cat(lower(weight->second->dtype_text), scale->shape.elements() > 1 ? " per channel" : " per tensor")];
  }
  std::string text;
  for (const auto& [scheme, count] : layers) text += cat(text.empty() ? "" : ", ", scheme, " (", count, " layers)");
  return text.empty() ? "float" : text;
}

/// The first line of a text, shortened for a table.
std::string brief(std::string text) {
  constexpr size_t kWidth = 90;
  const size_t line = text.find('\n');
  if (line != std::string::npos && line + 1 < text.size()) text = text.substr(0, line) + " ...";
  if (text.size() > kWidth) text = text.substr(0, kWidth - 4) + " ...";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

/// What `show` says of a set of weights.
struct Contents {
  Table facts{{"what", "value"}, {}};
  Table tensors{{"tensor", "dtype", "shape", "elements", "bytes"}, {}};
  Json published, files = Json::array(), tensors_json = Json::array(), others_json = Json::array(), metadata = Json::object();
  int64_t elements = 0, bytes = 0;
};

/// `here`: the file is on this machine.
void add_published(const PublishedWeights& published, bool here, Contents& contents) {
  Table& facts = contents.facts;
  Json entry{{"id", published.id()},      {"default", published.is_default},    {"about", published.about},
             {"url", published.url},      {"sha256", published.sha256},         {"file", published.file},
             {"fetched", here},           {"input_size", published.input_size}, {"num_params", published.num_params},
             {"gmacs", published.gmacs},  {"recipe", published.recipe},         {"license", published.license},
             {"metrics", Json::object()}, {"pipeline", published.pipeline()}};
  facts.rows = {{"weights", published.id() + (published.is_default ? " (default)" : "")},
                {"file", published.file + (here ? "" : " (not fetched)")},
                {"url", published.url},
                {"sha256", published.sha256},
                {"parameters", std::to_string(published.num_params)},
                {"GMACs as published", fixed(published.gmacs, 3)}};
  for (const auto& [metric, value] : published.metrics) {
    entry["metrics"][metric] = std::strtod(value.c_str(), nullptr);
    facts.rows.push_back({metric, value});
  }
  for (const auto& [what, value] : {std::pair<std::string, std::string>{"about", published.about},
                                    {"license", published.license},
                                    {"training recipe", published.recipe}}) {
    if (!value.empty()) facts.rows.push_back({what, value});
  }
  const std::string pipeline = published.pipeline();
  for (size_t begin = 0; begin < pipeline.size(); begin = pipeline.find('\n', begin) + 1)
    facts.rows.push_back({begin == 0 ? "pipeline" : "", pipeline.substr(begin, pipeline.find('\n', begin) - begin)});
  contents.published = std::move(entry);
}

void add_tensor(const OfferedTensor& tensor, Table& table, Json& list) {
  table.rows.push_back({tensor.name, lower(tensor.dtype_text), tensor.shape.str(), std::to_string(tensor.shape.elements()),
                        tensor.dtype ? std::to_string(bytes_of(tensor)) : "-"});
  list.push_back(
      {{"name", tensor.name}, {"dtype", lower(tensor.dtype_text)}, {"shape", shape_json(tensor.shape)}, {"bytes", bytes_of(tensor)}});
}

void add_metadata(const Metadata& metadata, Contents& contents) {
  for (const auto& [key, value] : metadata) {
    if (key.starts_with("galley.digest")) continue;
    contents.metadata[key] = value;
    if (key == kQuantizationKey) continue;  // the scheme
    const std::vector<std::string> lines = key == kMetricsKey        ? metrics_lines(value)
                                           : key == "galley.parents" ? parents_lines(value)
                                                                     : std::vector<std::string>();
    for (size_t i = 0; i < lines.size(); ++i)
      contents.facts.rows.push_back({i > 0 ? "" : key == kMetricsKey ? "metrics" : "parents", lines[i]});
    if (lines.empty()) contents.facts.rows.push_back({key, brief(value)});
  }
}

/// `all`: tensors that are not weights are listed too.
void add_file(const WeightsFile& file, bool all, Contents& contents) {
  Table& facts = contents.facts;
  contents.files.push_back({{"path", file.path()}, {"format", file.format()}, {"chosen", file.chosen()}, {"scheme", scheme_of(file)}});
  facts.rows.push_back({"file", file.path()});
  facts.rows.push_back({"format", file.format()});
  if (!file.chosen().empty()) facts.rows.push_back({"weights below the key", file.chosen()});
  if (!file.others().empty()) facts.rows.push_back({"other tensors", cat(file.others().size(), all ? "" : " (--all lists them)")});
  facts.rows.push_back({"scheme", scheme_of(file)});
  for (const OfferedTensor& tensor : file.tensors()) {
    add_tensor(tensor, contents.tensors, contents.tensors_json);
    contents.elements += tensor.shape.elements();
    contents.bytes += bytes_of(tensor);
  }
  for (const OfferedTensor& tensor : file.others()) {
    if (all) add_tensor(tensor, contents.tensors, contents.others_json);
  }
  add_metadata(file.metadata(), contents);
}

}  // namespace

int WeightsTool::show() const {
  check_word_count(1, 1, "one set of weights");
  const WeightRegistry registry = weight_registry();
  std::optional<PublishedWeights> published;
  if (registry.is_reference(words_[0])) published = registry.find(words_[0]);
  const bool here = !published || file_exists(published->file);
  Opened opened;
  if (here) opened = open(words_[0]);

  Contents contents;
  if (published) add_published(*published, here, contents);
  for (const WeightsFile& file : opened.files) add_file(file, all_, contents);
  Table& facts = contents.facts;
  if (here) {
    facts.rows.push_back({"tensors", std::to_string(contents.tensors_json.size())});
    facts.rows.push_back({"elements", std::to_string(contents.elements)});
    facts.rows.push_back({"MiB", megabytes(static_cast<double>(contents.bytes))});
  }
  if (common.format == Format::kJson) {
    Json json;
    if (published) json["published"] = contents.published;
    json.update({{"files", contents.files},
                 {"tensors", contents.tensors_json},
                 {"elements", contents.elements},
                 {"bytes", contents.bytes},
                 {"metadata", contents.metadata},
                 {"provenance", provenance_of(words_)}});
    if (all_) json["others"] = contents.others_json;
    print(json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  } else if (common.format == Format::kCsv) {
    print(here ? contents.tensors : facts);
  } else {
    print(render(facts, common.format) + (here ? "\n" + render(contents.tensors, common.format) : ""));
  }
  return kExitDone;
}

}  // namespace galley::tools
