#include "libcore/weights/calibration_file.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "libcore/weights/safetensors.h"

namespace galley {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kKey = "galley.calibration";
/// Version 2 adds weight scales learned in training; a program that reads only version 1 would ignore them.
constexpr int64_t kPlainVersion = 1, kVersion = 2;
constexpr int64_t kInfos = 5;
constexpr int64_t kCountLimit = int64_t{1} << 50, kSizeLimit = int64_t{1} << 20;

Json parts_json(const std::vector<CalibrationPart>& parts) {
  Json json = Json::array();
  for (const CalibrationPart& part : parts) {
    json.push_back({{"samples", part.samples},
                    {"batches", part.batches},
                    {"batch", part.batch},
                    {"first", part.first},
                    {"source", part.source},
                    {"data", part.data},
                    {"recipe", part.recipe}});
  }
  return json;
}

/// Members of the metadata's JSON; throws Error with the name of a damaged one.
const Json& calibration_member(const Json& object, const char* key) {
  const auto found = object.find(key);
  GALLEY_CHECK_INPUT(object.is_object() && found != object.end(), kKey, " has no '", key, "'");
  return *found;
}
std::string calibration_text(const Json& object, const char* key) {
  const Json& value = calibration_member(object, key);
  GALLEY_CHECK_INPUT(value.is_string(), kKey, ": '", key, "' is not a string");
  return value.get<std::string>();
}
int64_t count_of(const Json& object, const char* key) {
  const Json& value = calibration_member(object, key);
  GALLEY_CHECK_INPUT(
      value.is_number_integer() && !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(kCountLimit)), kKey, ": '",
      key, "' is not a non-negative integer");
  const auto count = value.get<int64_t>();
  GALLEY_CHECK_INPUT(count >= 0 && count <= kCountLimit, kKey, ": '", key, "' is ", count, ", which is out of range");
  return count;
}

Calibration calibration_of(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  GALLEY_CHECK_INPUT(json.is_object(), kKey, " is not a JSON object");
  const int64_t version = count_of(json, "version");
  GALLEY_CHECK_INPUT(version >= kPlainVersion && version <= kVersion, "the calibration has version ", version,
                     ", but this version of Galley reads up to ", kVersion);
  Calibration calibration{.model = calibration_text(json, "model")};
  if (json.contains("input")) {
    const Json& input = calibration_member(json, "input");
    GALLEY_CHECK_INPUT(input.is_array() && input.size() < 8, kKey, ": 'input' is not a shape");
    for (const Json& size : input) {
      GALLEY_CHECK_INPUT(size.is_number_unsigned() && size.get<uint64_t>() > 0 && size.get<uint64_t>() <= static_cast<uint64_t>(kSizeLimit),
                         kKey, ": 'input' is not a shape");
      calibration.input.push_back(size.get<int64_t>());
    }
  }
  if (json.contains("inputs")) {
    const Json& inputs = calibration_member(json, "inputs");
    GALLEY_CHECK_INPUT(inputs.is_array() && inputs.size() < 64, kKey, ": 'inputs' is not a list of names");
    for (const Json& name : inputs) {
      GALLEY_CHECK_INPUT(name.is_string(), kKey, ": 'inputs' is not a list of names");
      calibration.inputs.push_back(name.get<std::string>());
    }
  }
  const Json& order = calibration_member(json, "values");
  GALLEY_CHECK_INPUT(order.is_array() && static_cast<int64_t>(order.size()) <= kSafetensorsEntryLimit, kKey, ": 'values' is not a list");
  std::set<std::string> names;
  for (const Json& name : order) {
    GALLEY_CHECK_INPUT(name.is_string() && names.insert(name.get<std::string>()).second, kKey,
                       ": 'values' has a repeated name or an item that is not a string");
    calibration.order.push_back(name.get<std::string>());
  }
  const Json& parts = calibration_member(json, "parts");
  GALLEY_CHECK_INPUT(parts.is_array(), kKey, ": 'parts' is not a list");
  for (const Json& part : parts) {
    calibration.parts.push_back({.samples = count_of(part, "samples"),
                                 .batches = count_of(part, "batches"),
                                 .batch = count_of(part, "batch"),
                                 .first = count_of(part, "first"),
                                 .source = calibration_text(part, "source"),
                                 .data = calibration_text(part, "data"),
                                 .recipe = calibration_text(part, "recipe")});
    GALLEY_CHECK_INPUT(calibration.samples() <= kCountLimit && calibration.batches() <= kCountLimit, kKey, ": too many samples");
  }
  const Json& weights = calibration_member(json, "weights");
  GALLEY_CHECK_INPUT(weights.is_object(), kKey, ": 'weights' is not an object");
  for (const auto& [name, digest] : weights.items()) {
    GALLEY_CHECK_INPUT(digest.is_string(), kKey, ": the digest of ", name, " is not a string");
    calibration.weights.emplace(name, digest.get<std::string>());
  }
  if (version == kPlainVersion) return calibration;
  const Json& bounds = calibration_member(json, "weight_bounds");
  GALLEY_CHECK_INPUT(bounds.is_array() && static_cast<int64_t>(bounds.size()) <= kSafetensorsEntryLimit, kKey,
                     ": 'weight_bounds' is not a list");
  for (const Json& name : bounds) {
    GALLEY_CHECK_INPUT(name.is_string() && calibration.weight_bounds.emplace(name.get<std::string>(), Tensor()).second, kKey,
                       ": 'weight_bounds' has a repeated name or an item that is not a string");
  }
  return calibration;
}

Tensor read_part(const SafetensorsFile& file, const std::string& name, const char* part, DType dtype, int rank) {
  Tensor tensor = file.read(cat(name, ".", part));
  GALLEY_CHECK_INPUT(tensor.dtype() == dtype && tensor.shape().rank() == rank, "tensor '", name, ".", part, "' is ", tensor.str(),
                     ", but must be ", dtype, " of rank ", rank);
  return tensor;
}

RangeStatistics read_statistics(const SafetensorsFile& file, const std::string& name, int64_t batches) {
  const Tensor ranges = read_part(file, name, "batches", DType::kF32, 2), histogram = read_part(file, name, "histogram", DType::kI64, 1),
               info = read_part(file, name, "info", DType::kI64, 1);
  GALLEY_CHECK_INPUT(ranges.shape()[1] == 2 && info.shape()[0] == kInfos, "the statistics of ", name, " have the shapes ", ranges.shape(),
                     " and ", info.shape());
  GALLEY_CHECK_INPUT(ranges.shape()[0] == batches, "the statistics of ", name, " have ", ranges.shape()[0], " batches, but the file has ",
                     batches);
  std::vector<BatchRange> each(static_cast<size_t>(batches));
  const auto* bounds = ranges.data_as<float>();
  for (size_t i = 0; i < each.size(); ++i) each[i] = {bounds[2 * i], bounds[2 * i + 1]};
  const auto* numbers = info.data_as<int64_t>();
  const int64_t exponent = std::clamp<int64_t>(numbers[0], -1000, 1000);
  const std::span<const int64_t> counts(histogram.data_as<int64_t>(), static_cast<size_t>(histogram.elements()));
  try {
    return RangeStatistics(std::move(each), Histogram(static_cast<int>(exponent), numbers[1], counts, numbers[2]), numbers[3], numbers[4]);
  } catch (Error& error) {
    throw error.context(cat(", of ", name));
  }
}

Tensor read_bounds(const SafetensorsFile& file, const std::string& weight) {
  Tensor bounds = file.read(cat(weight, ".bounds"));
  GALLEY_CHECK_INPUT(bounds.dtype() == DType::kF32 && bounds.shape().rank() <= 1 && bounds.elements() > 0, "tensor '", weight,
                     ".bounds' is ", bounds.str(), ", but must be f32 [] or [channels]");
  for (const float bound : std::span(bounds.data_as<float>(), static_cast<size_t>(bounds.elements()))) {
    GALLEY_CHECK_INPUT(std::isfinite(bound) && bound > 0, "tensor '", weight, ".bounds' has the value ", bound,
                       ", but must be positive and finite");
  }
  return bounds;
}

}  // namespace

void write_calibration(const std::string& path, const Calibration& calibration) {
  Json json{{"version", calibration.weight_bounds.empty() ? kPlainVersion : kVersion},
            {"model", calibration.model},
            {"input", calibration.input},
            {"values", calibration.order},
            {"parts", parts_json(calibration.parts)},
            {"weights", calibration.weights}};
  if (!calibration.inputs.empty()) json["inputs"] = calibration.inputs;
  std::vector<TensorSource> tensors;
  for (const auto& [name, bounds] : calibration.weight_bounds) {
    json["weight_bounds"].push_back(name);
    tensors.emplace_back(name + ".bounds", bounds);
  }
  const Metadata metadata{{std::string(kKey), json.dump()}, {"galley.recipe", calibration.recipe}};
  for (const std::string& name : calibration.order) {
    const RangeStatistics& statistics = calibration.at(name);
    const Histogram& histogram = statistics.histogram();
    const auto batches = static_cast<int64_t>(statistics.batches().size()), first = histogram.first(), bins = histogram.last() - first + 1;
    Tensor ranges(DType::kF32, {batches, 2}), counts(DType::kI64, {bins}), info(DType::kI64, {kInfos});
    for (int64_t i = 0; i < batches; ++i) {
      const BatchRange& range = statistics.batches()[static_cast<size_t>(i)];
      ranges.data_as<float>()[2 * i] = range.min;
      ranges.data_as<float>()[2 * i + 1] = range.max;
    }
    for (int64_t i = 0; i < bins; ++i) counts.data_as<int64_t>()[i] = histogram.count(first + i);
    const std::array<int64_t, kInfos> numbers{histogram.exponent(), first, histogram.zeros(), statistics.elements(), statistics.stride()};
    std::copy(numbers.begin(), numbers.end(), info.data_as<int64_t>());
    tensors.emplace_back(name + ".batches", ranges);
    tensors.emplace_back(name + ".histogram", counts);
    tensors.emplace_back(name + ".info", info);
  }
  write_safetensors(path, tensors, metadata);
}

Calibration read_calibration(const std::string& path) {
  const SafetensorsFile file(path);
  const auto found = file.metadata().find(std::string(kKey));
  if (found == file.metadata().end()) {
    throw Error(ErrorCode::kInput, cat(path, " is a safetensors file, but not a calibration"))
        .suggest("create one with galley-calibrate RECIPE weights=FILE -o stats.calib");
  }
  file.verify();
  try {
    Calibration calibration = calibration_of(found->second);
    const auto recipe = file.metadata().find("galley.recipe");
    if (recipe != file.metadata().end()) calibration.recipe = recipe->second;
    for (const std::string& name : calibration.order) calibration.values.emplace(name, read_statistics(file, name, calibration.batches()));
    for (auto& [name, bounds] : calibration.weight_bounds) bounds = read_bounds(file, name);
    return calibration;
  } catch (Error& error) {
    throw Error(error.code(), cat(path, ": ", error.message())).suggest("the file is damaged: run galley-calibrate again");
  }
}

}  // namespace galley
