#include "libcore/weights/load.h"

#include <algorithm>
#include <atomic>
#include <set>

#include "libcore/base/digest.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/weights/checkpoint.h"
#include "libcore/weights/weights_file.h"

namespace galley {
namespace {

/// The opened files of LoadRule::from: one file, or the groups of a checkpoint.
struct Source {
  std::vector<WeightsFile> files;
  std::vector<OfferedTensor> offered;
  std::vector<std::pair<size_t, size_t>> places;  // file and entry of each offered tensor
};

Source open_source(const std::string& from) {
  Source source;
  for (const std::string& path : weights_files(from)) {
    source.files.emplace_back(path);
    const FileCheck check = source.files.back().verify();
    if (source.files.back().format() == "PyTorch zip" && !check.complete())
      log(LogLevel::kWarning, cat(path, " was saved without checksums: damaged values cannot be detected"));
    const std::vector<OfferedTensor>& tensors = source.files.back().tensors();
    for (size_t i = 0; i < tensors.size(); ++i) {
      source.offered.push_back(tensors[i]);
      source.places.push_back({source.files.size() - 1, i});
    }
  }
  return source;
}

template <class Bits>
NonFiniteCount scan(const void* data, int64_t count, Bits exponent) {
  constexpr int64_t kBlock = 1 << 16;  // counted in 32 bits so that the loop vectorizes
  const auto* bits = static_cast<const Bits*>(data);
  std::atomic<int64_t> total = 0;
  parallel_for((count + kBlock - 1) / kBlock, 8, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const Bits* at = bits + block * kBlock;
      const int64_t length = std::min(kBlock, count - block * kBlock);
      int32_t here = 0;
      for (int64_t i = 0; i < length; ++i) here += (at[i] & exponent) == exponent;
      if (here > 0) total += here;
    }
  });
  NonFiniteCount found{.count = total};
  for (int64_t i = 0; found.count > 0 && found.first < 0; ++i) {
    if ((bits[i] & exponent) == exponent) found.first = i;
  }
  return found;
}

/// The index "[0,3,1]" of an element in logical order.
std::string index_text(int64_t element, const Shape& shape) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    index[static_cast<size_t>(axis)] = element % shape[axis];
    element /= shape[axis];
  }
  return Shape(std::span<const int64_t>(index)).str();
}

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 5); ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 5 ? cat(text, " and ", names.size() - 5, " more") : text;
}

Tensor checked(const Tensor& stored, const ExpectedTensor& wanted, const LoadRule& rule) {
  const NonFiniteCount before = count_non_finite(stored);
  if (rule.check_finite && before.count > 0) {
    throw Error(ErrorCode::kInput, cat(rule.from, ": tensor '", wanted.name, "' contains ", before.count,
                                       " values that are NaN or infinite, the first at ", index_text(before.first, stored.shape())))
        .suggest("use weights from before the run diverged, or accept them with weights.load.0.check_finite=false");
  }
  if (stored.dtype() == wanted.dtype) return stored;
  Tensor cast = stored.to(wanted.dtype);
  const NonFiniteCount after = count_non_finite(cast);
  if (after.count > before.count) {
    throw Error(ErrorCode::kInput,
                cat(rule.from, ": tensor '", wanted.name, "' has ", after.count - before.count, " values that ", wanted.dtype,
                    " cannot represent (it is stored as ", stored.dtype(), "), the first at ", index_text(after.first, stored.shape())));
  }
  return cast;
}

}  // namespace

NonFiniteCount count_non_finite(const Tensor& tensor) {
  const int64_t count = tensor.elements();
  GALLEY_ASSERT(tensor.format().is_contiguous());
  switch (tensor.dtype()) {
    case DType::kF32: return scan<uint32_t>(tensor.data(), count, 0x7f800000u);
    case DType::kF64: return scan<uint64_t>(tensor.data(), count, 0x7ff0000000000000u);
    case DType::kF16: return scan<uint16_t>(tensor.data(), count, 0x7c00u);
    case DType::kBF16: return scan<uint16_t>(tensor.data(), count, 0x7f80u);
    default: return {};
  }
}

std::vector<std::string> weights_files(const std::string& from) {
  if (is_folder(from)) {
    if (is_checkpoint(from)) {
      const Checkpoint checkpoint(from);
      std::vector<std::string> files;
      for (const char* group : {"parameters", "buffers"}) {
        if (checkpoint.has_group(group)) files.push_back(checkpoint.file_of(group));
      }
      GALLEY_CHECK_INPUT(!files.empty(), "checkpoint ", from, " contains no parameters");
      return files;
    }
    const std::string weights = from + "/weights.safetensors";
    if (file_exists(weights)) return {weights};
    Error error(ErrorCode::kInput, cat("the folder ", from, " has no weights.safetensors"));
    const std::vector<std::string> checkpoints = checkpoint_folders(from + "/checkpoints");
    if (!checkpoints.empty())
      error.suggest(cat("its run has not finished; to use its newest checkpoint, set weights=", checkpoints.front()));
    throw error;
  }
  return {from};
}

LoadedWeights load_weights(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules) {
  std::vector<Source> sources;
  std::vector<Match> matches;
  std::vector<bool> filled(model.size(), false);
  for (const LoadRule& rule : rules) {
    sources.push_back(open_source(rule.from));
    matches.push_back(match_tensors(model, sources.back().offered, rule));
    for (const Match::Pair& pair : matches.back().pairs) filled[pair.expected] = true;
  }

  // Tensors that another rule fills are not missing, so misfits are known only now.
  std::string misfits, hint;
  for (size_t r = 0; r < rules.size(); ++r) {
    std::erase_if(matches[r].missing, [&](size_t expected) { return filled[expected]; });
    const std::string report = misfit_report(model, sources[r].offered, rules[r], matches[r]);
    if (report.empty()) continue;
    misfits += (misfits.empty() ? "" : "\n") + report;
    for (const WeightsFile& file : sources[r].files) {
      if (hint.empty()) hint = file.misfit_hint();
    }
  }
  if (!misfits.empty()) throw Error(ErrorCode::kInput, misfits).key("weights").suggest(hint);

  LoadedWeights loaded;
  for (size_t r = 0; r < rules.size(); ++r) {
    const LoadRule& rule = rules[r];
    std::set<std::string> casts;
    for (const Match::Pair& pair : matches[r].pairs) {
      const auto [file, entry] = sources[r].places[pair.offered];
      const ExpectedTensor& wanted = model[pair.expected];
      const Tensor values = sources[r].files[file].read(entry);
      if (values.dtype() != wanted.dtype) casts.insert(cat(values.dtype(), " to ", wanted.dtype));
      loaded.tensors.insert_or_assign(wanted.name, checked(values, wanted, rule));
    }
    if (!casts.empty()) log(LogLevel::kWarning, cat(rule.from, ": converted ", some_of({casts.begin(), casts.end()})));
    std::vector<std::string> missing, unexpected;
    for (const size_t expected : matches[r].missing) missing.push_back(model[expected].name);
    for (const size_t offered : matches[r].unexpected) unexpected.push_back(sources[r].offered[offered].name);
    if (!missing.empty())
      log(LogLevel::kWarning,
          cat(rule.from, " (not strict): ", missing.size(), " tensors of the model keep their initial values: ", some_of(missing)));
    if (!unexpected.empty())
      log(LogLevel::kWarning,
          cat(rule.from, " (not strict): ", unexpected.size(), " tensors of the file are not used: ", some_of(unexpected)));
  }
  for (const ExpectedTensor& tensor : model) {
    if (loaded.tensors.count(tensor.name) == 0) loaded.kept.push_back(tensor.name);
  }
  return loaded;
}

std::vector<WeightsParent> weights_parents(const std::string& from) {
  std::vector<WeightsParent> parents;
  std::vector<std::byte> buffer(size_t{1} << 20);
  for (const std::string& path : weights_files(from)) {
    const InputFile file(path);
    Digest digest;
    for (int64_t at = 0; at < file.size(); at += static_cast<int64_t>(buffer.size())) {
      const auto part =
          std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(static_cast<int64_t>(buffer.size()), file.size() - at)));
      file.read(at, part);
      digest.update(part);
    }
    parents.push_back({path, digest.hex()});
  }
  return parents;
}

Metadata read_weights_metadata(const std::string& from) { return WeightsFile(weights_files(from).front()).metadata(); }

}  // namespace galley
