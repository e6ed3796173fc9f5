#include "libcore/weights/compare.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "libcore/base/error.h"
#include "libcore/weights/load.h"

namespace galley {
namespace {

void measure(const Tensor& first, const Tensor& second, TensorDifference& difference) {
  const int64_t count = first.elements(), first_size = dtype_size(first.dtype()), second_size = dtype_size(second.dtype());
  const auto* a = static_cast<const std::byte*>(first.data());
  const auto* b = static_cast<const std::byte*>(second.data());
  double signal = 0, noise = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double x = load_element(first.dtype(), a + i * first_size), y = load_element(second.dtype(), b + i * second_size);
    if (x == y || (std::isnan(x) && std::isnan(y))) {
      signal += std::isfinite(x) ? x * x : 0;
      continue;
    }
    ++difference.different;
    const double error = std::abs(x - y);
    largest = std::isnan(error) || error > largest ? error : largest;
    signal += x * x;
    noise += error * error;
  }
  difference.max_abs = largest;
  difference.sqnr_db = difference.different == 0 ? std::numeric_limits<double>::infinity() : 10 * std::log10(signal / noise);
}

}  // namespace

bool WeightsDifference::equal() const {
  return only_first.empty() && only_second.empty() && std::all_of(both.begin(), both.end(), [](const TensorDifference& tensor) {
           return tensor.comparable && tensor.different == 0 && tensor.first.dtype == tensor.second.dtype;
         });
}

WeightsDifference compare_weights(const WeightsFile& first, const WeightsFile& second,
                                  const std::vector<std::pair<std::string, std::string>>& rename) {
  // The first file takes the role of the model, so that names are matched as when loading.
  std::vector<ExpectedTensor> wanted;
  for (const OfferedTensor& tensor : first.tensors()) wanted.push_back({tensor.name, tensor.dtype.value_or(DType::kF32), tensor.shape});
  const LoadRule rule{.from = second.path(), .rename = rename, .cast = true};
  const Match match = match_tensors(wanted, second.tensors(), rule);

  std::unordered_map<size_t, size_t> partner;
  for (const std::vector<Match::Pair>* pairs : {&match.pairs, &match.misshapen, &match.mistyped}) {
    for (const Match::Pair& pair : *pairs) partner[pair.expected] = pair.offered;
  }
  std::vector<bool> used(second.tensors().size(), false);
  WeightsDifference difference;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const OfferedTensor& tensor = first.tensors()[i];
    const auto found = partner.find(i);
    if (found == partner.end()) {
      difference.only_first.push_back(tensor);
      continue;
    }
    used[found->second] = true;
    TensorDifference both{tensor.name, tensor, second.tensors()[found->second]};
    both.comparable = both.first.shape == both.second.shape && both.first.dtype.has_value() && both.second.dtype.has_value();
    if (both.comparable) measure(first.read(i), second.read(found->second), both);
    difference.both.push_back(std::move(both));
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) difference.only_second.push_back(second.tensors()[i]);
  }
  difference.proposed = propose_renames(wanted, second.tensors(), rule, match);
  return difference;
}

std::vector<TensorSource> average_weights(std::span<const WeightsFile> files) {
  GALLEY_CHECK(!files.empty(), "averaging needs at least one file");
  std::vector<TensorSource> sources;
  for (size_t t = 0; t < files[0].tensors().size(); ++t) {
    const OfferedTensor& wanted = files[0].tensors()[t];
    std::vector<size_t> places;
    for (const WeightsFile& file : files) {
      const auto& tensors = file.tensors();
      GALLEY_CHECK_INPUT(tensors.size() == files[0].tensors().size(), file.path(), " has ", tensors.size(), " tensors, but ",
                         files[0].path(), " has ", files[0].tensors().size());
      // Files of one run have the same order; search only in others.
      size_t place = t;
      if (tensors[t].name != wanted.name) {
        place = static_cast<size_t>(
            std::find_if(tensors.begin(), tensors.end(), [&](const OfferedTensor& tensor) { return tensor.name == wanted.name; }) -
            tensors.begin());
      }
      GALLEY_CHECK_INPUT(place < tensors.size(), file.path(), " has no tensor '", wanted.name, "', which ", files[0].path(), " has");
      GALLEY_CHECK_INPUT(tensors[place].shape == wanted.shape && tensors[place].dtype_text == wanted.dtype_text, "tensor '", wanted.name,
                         "' is ", tensors[place].dtype_text, " ", tensors[place].shape, " in ", file.path(), " and ", wanted.dtype_text,
                         " ", wanted.shape, " in ", files[0].path());
      places.push_back(place);
    }
    GALLEY_CHECK_INPUT(wanted.dtype.has_value(), "tensor '", wanted.name, "' has the dtype ", wanted.dtype_text,
                       ", which Galley does not support");
    sources.emplace_back(wanted.name, *wanted.dtype, wanted.shape, [files, places, wanted]() {
      if (!is_floating(*wanted.dtype)) return files.back().read(places.back());
      std::vector<double> sums(static_cast<size_t>(wanted.shape.elements()), 0.0);
      const int64_t size = dtype_size(*wanted.dtype);
      for (size_t f = 0; f < files.size(); ++f) {
        const Tensor values = files[f].read(places[f]);
        const NonFiniteCount bad = count_non_finite(values);
        GALLEY_CHECK_INPUT(bad.count == 0, files[f].path(), ": tensor '", wanted.name, "' contains ", bad.count,
                           bad.count == 1 ? " value that is" : " values that are", " NaN or infinite");
        const auto* data = static_cast<const std::byte*>(values.data());
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += load_element(*wanted.dtype, data + static_cast<int64_t>(i) * size);
      }
      for (double& sum : sums) sum /= static_cast<double>(files.size());
      Tensor mean(*wanted.dtype, wanted.shape);
      mean.from_doubles(sums);
      return mean;
    });
  }
  return sources;
}

}  // namespace galley
