#include "libcore/train/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"
#include "libcore/base/file.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

Json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

double parse_number(const Json& json) {
  if (json.is_null()) return NAN;
  if (json.is_string()) return json == "nan" ? NAN : json == "inf" ? INFINITY : -INFINITY;
  return json.get<double>();
}

Json losses_json(const MetricValues& losses) {
  Json json = Json::object();
  for (const auto& [name, value] : losses) json[name] = number(value);
  return json;
}

/// Metrics without a value, such as those of small objects where there are none, are null.
Json metrics_json(const MetricValues& metrics) {
  Json json = Json::object();
  for (const auto& [name, value] : metrics) json[name] = std::isnan(value) && name != "loss" ? Json() : number(value);
  return json;
}

/// Rounds timings to six significant digits to keep lines short.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double scale = std::pow(10.0, 5 - std::floor(std::log10(std::fabs(value))));
  return std::round(value * scale) / scale;
}

}  // namespace

std::string to_json(const TrainRow& row) {
  Json json;
  json["kind"] = "train";
  json["step"] = row.step;
  json["epoch"] = rounded(row.epoch);
  json["samples"] = row.samples;
  json["loss"] = number(row.loss);
  if (!row.losses.empty()) json["losses"] = losses_json(row.losses);
  json["lr"] = number(row.lr);
  json["grad_norm"] = number(row.grad_norm);
  if (row.loss_scale) json["loss_scale"] = *row.loss_scale;
  json["step_ms"] = number(rounded(row.step_ms));
  json["data_ms"] = number(rounded(row.data_ms));
  json["samples_per_s"] = number(rounded(row.samples_per_s));
  json["peak_bytes"] = row.peak_bytes;
  return json.dump();
}

std::string to_json(const EvalRow& row) {
  Json json;
  json["kind"] = "eval";
  json["step"] = row.step;
  json["epoch"] = rounded(row.epoch);
  json["split"] = row.split;
  json["samples"] = row.samples;
  json["wall_s"] = rounded(row.wall_s);
  json["metrics"] = metrics_json(row.metrics);
  for (const auto& [prompt, text] : row.texts) json["texts"].push_back({{"prompt", prompt}, {"text", text}});
  return json.dump();
}

std::string to_json(const TrainResult& result) {
  Json json;
  json["metrics"] = metrics_json(result.metrics);
  if (!result.losses.empty()) json["losses"] = losses_json(result.losses);
  if (result.best.metric.empty()) {
    json["best"] = nullptr;
  } else {
    json["best"] = {
        {"metric", result.best.metric}, {"value", number(result.best.value)}, {"step", result.best.step}, {"weights", result.best.weights}};
  }
  json["steps"] = result.steps;
  json["epochs"] = rounded(result.epochs);
  json["samples"] = result.samples;
  json["wall_s"] = rounded(result.wall_s);
  json["stopped"] = result.stopped;
  if (!result.digest.empty()) json["digest"] = result.digest;
  json["compilations"] = Json::array();
  for (const Compilation& each : result.compilations)
    json["compilations"].push_back({{"program", each.program}, {"reason", each.reason}, {"seconds", rounded(each.seconds)}});
  json["micro"] = result.micro;
  json["ranks"] = result.ranks;
  json["strategy"] = result.strategy;
  json["planned_peak_bytes"] = result.planned_peak_bytes;
  json["peak_bytes"] = result.peak_bytes;
  if (!result.peak_of_ranks.empty()) {
    json["planned_peak_bytes_of_ranks"] = result.planned_peak_of_ranks;
    json["peak_bytes_of_ranks"] = result.peak_of_ranks;
  }
  json["skipped"] = result.skipped;
  json["irregular"] = result.irregular;
  json["provenance"] = Json::parse(result.provenance.empty() ? "{}" : result.provenance);
  return json.dump();
}

TrainResult parse_result(const std::string& text, const std::string& path) {
  TrainResult result;
  try {
    const Json json = Json::parse(text);
    for (const auto& [name, value] : json.at("metrics").items()) result.metrics.emplace_back(name, parse_number(value));
    if (json.contains("losses")) {
      for (const auto& [name, value] : json["losses"].items()) result.losses.emplace_back(name, parse_number(value));
    }
    if (!json.at("best").is_null()) {
      const Json& best = json["best"];
      result.best = {best.at("metric"), parse_number(best.at("value")), best.at("step"), best.at("weights")};
    }
    result.steps = json.at("steps");
    result.epochs = json.at("epochs");
    result.samples = json.at("samples");
    result.wall_s = json.at("wall_s");
    result.stopped = json.at("stopped");
    result.digest = json.value("digest", std::string());
    for (const Json& each : json.value("compilations", Json::array())) {
      result.compilations.push_back({each.at("program"), each.at("reason"), parse_number(each.at("seconds"))});
    }
    result.micro = json.at("micro");
    result.ranks = json.at("ranks");
    result.strategy = json.value("strategy", std::string("none"));
    result.planned_peak_bytes = json.at("planned_peak_bytes");
    result.peak_bytes = json.at("peak_bytes");
    result.skipped = json.value("skipped", int64_t{0});
    result.irregular = json.value("irregular", int64_t{0});
    result.provenance = json.at("provenance").dump();
  } catch (const Json::exception& error) {
    throw Error(ErrorCode::kInput, cat(path, " is damaged: ", error.what())).suggest("use --force to start again");
  }
  return result;
}

RunFolder::RunFolder(std::string path, bool writes) : path_(std::move(path)), writes_(writes) {
  if (writes_) make_folders(path_);
}

void RunFolder::append(const std::string& json_line) {
  if (!writes_) return;
  const std::string name = file("metrics.jsonl");
  const int descriptor = ::open(name.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(ErrorCode::kResource, name, " cannot be written: ", std::strerror(errno));
  const std::string line = json_line + "\n";
  const ssize_t written = ::write(descriptor, line.data(), line.size());
  const int reason = errno;
  ::close(descriptor);
  if (written != static_cast<ssize_t>(line.size()))
    fail(ErrorCode::kResource, name, " cannot be written: ", written < 0 ? std::strerror(reason) : "the disk is full");
}

void RunFolder::truncate_after(int64_t step) {
  const std::string name = file("metrics.jsonl");
  if (!writes_ || !file_exists(name)) return;
  const std::string old = read_file(name);
  std::string kept;
  for (size_t begin = 0; begin < old.size();) {
    const size_t end = old.find('\n', begin);
    if (end == std::string::npos) break;  // incomplete line of a crashed process
    const std::string line = old.substr(begin, end - begin);
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json.value("step", int64_t{0}) <= step) kept += line + "\n";
    begin = end + 1;
  }
  if (kept != old) write_file(name, kept);
}

void RunFolder::write_text(const std::string& name, const std::string& text) {
  if (writes_) write_file(file(name), text);
}

}  // namespace galley
