#include "libcore/weights/load.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "libcore/base/digest.h"
#include "libcore/base/file.h"
#include "libcore/base/log.h"
#include "libcore/base/parallel.h"
#include "libcore/weights/adapter.h"
#include "libcore/weights/checkpoint.h"
#include "libcore/weights/hub.h"
#include "libcore/weights/weights_file.h"

namespace galley {
namespace {

/// Where an offered tensor is, and whether its two dimensions are exchanged.
struct TensorPlace {
  size_t file = 0, entry = 0;
  bool transposed = false;
};

/// The opened files of LoadRule::from: one file, the groups of a checkpoint, or a hub folder.
struct Source {
  std::vector<WeightsFile> files;
  std::vector<OfferedTensor> offered;
  std::vector<TensorPlace> places;
  std::optional<HubFolder> hub;
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

std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 5); ++i) text += (i ? ", " : "") + names[i];
  return names.size() > 5 ? cat(text, " and ", names.size() - 5, " more") : text;
}

/// The model's names below the module that a rule fills.
std::vector<std::string_view> names_in_scope(std::span<const ExpectedTensor> model, const LoadRule& rule) {
  std::vector<std::string_view> names;
  for (const ExpectedTensor& tensor : model) {
    const std::string_view name = tensor.name;
    if (rule.into.empty()) {
      names.push_back(name);
    } else if (name.starts_with(rule.into) && name.size() > rule.into.size() && name[rule.into.size()] == '.') {
      names.push_back(name.substr(rule.into.size() + 1));
    }
  }
  return names;
}

/// Throws if a folder has a weight of the output layer that is not used, because it is tied, and that is not the embedding's.
void check_tied(const Source& source, const std::vector<HubName>& names, const LoadRule& rule) {
  const HubTensors& rules = source.hub->tensors();
  if (rules.tied.empty() || !source.hub->predicts_tokens()) return;
  const std::string below_base = cat(rules.base, ".", rules.table);
  std::optional<size_t> table, copy;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i].ignored && source.offered[i].name == rules.tied) copy = i;
    if (names[i].name == rules.table || names[i].name == below_base) table = i;
  }
  if (!table || !copy) return;
  const auto values = [&](size_t i) { return source.files[source.places[i].file].read(source.places[i].entry); };
  const Tensor a = values(*table), b = values(*copy);
  const bool equal =
      a.dtype() == b.dtype() && a.shape() == b.shape() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
  source.files[source.places[*table].file].release();
  source.files[source.places[*copy].file].release();
  if (equal) return;
  throw Error(ErrorCode::kInput, cat("config.json says that the output layer is tied to the embedding (tie_word_embeddings), but ",
                                     rules.tied, " differs from ", source.offered[*table].name))
      .at({.file = source.files[source.places[*copy].file].path()})
      .suggest(cat("set tie_word_embeddings to false in ", rule.from, "/config.json, or remove the tensor ", rules.tied));
}

/// Opens the source of a rule; tensors of a hub folder get the model's names and shapes.
Source open_source(std::span<const ExpectedTensor> model, const LoadRule& rule) {
  Source source = open_source(rule.from);
  if (!is_hub_folder(rule.from)) return source;
  source.hub.emplace(rule.from);
  std::vector<std::string> names;
  for (const OfferedTensor& tensor : source.offered) names.push_back(tensor.name);
  const std::vector<HubName> adapted = hub_names(source.hub->tensors(), names, names_in_scope(model, rule));
  check_tied(source, adapted, rule);
  std::vector<OfferedTensor> offered;
  std::vector<TensorPlace> places;
  for (size_t i = 0; i < adapted.size(); ++i) {
    if (adapted[i].ignored) continue;
    OfferedTensor tensor = source.offered[i];
    tensor.name = adapted[i].name;
    const bool transposed = adapted[i].transposed && tensor.shape.rank() == 2;
    if (transposed) tensor.shape = {tensor.shape[1], tensor.shape[0]};
    offered.push_back(std::move(tensor));
    places.push_back(source.places[i]);
    places.back().transposed = transposed;
  }
  source.offered = std::move(offered);
  source.places = std::move(places);
  return source;
}

Tensor transpose(const Tensor& stored) {
  const int64_t rows = stored.shape()[0], columns = stored.shape()[1], size = dtype_size(stored.dtype());
  Tensor result(stored.dtype(), {columns, rows});
  const auto* from = static_cast<const std::byte*>(stored.data());
  auto* to = static_cast<std::byte*>(result.data());
  constexpr int64_t kBlock = 32;  // rows and columns of a part that stays in the cache
  parallel_for((columns + kBlock - 1) / kBlock, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = 0; row < rows; row += kBlock) {
      for (int64_t c = begin * kBlock; c < std::min(columns, end * kBlock); ++c) {
        for (int64_t r = row; r < std::min(rows, row + kBlock); ++r)
          std::memcpy(to + (c * rows + r) * size, from + (r * columns + c) * size, static_cast<size_t>(size));
      }
    }
  });
  return result;
}

/// Whether a tensor is one of PREFIX.N of a list of layers, of which the model has PREFIX.0, but not PREFIX.N.
bool of_surplus_layer(std::string_view name, const std::vector<std::string_view>& model) {
  const auto has = [&](const std::string& layer) {
    return std::any_of(model.begin(), model.end(), [&](std::string_view other) { return other.starts_with(layer); });
  };
  for (size_t begin = 0, end = 0; (end = name.find('.', begin)) != std::string_view::npos; begin = end + 1) {
    const std::string_view part = name.substr(begin, end - begin);
    if (part.empty() || part.find_first_not_of("0123456789") != std::string_view::npos) continue;
    if (has(cat(name.substr(0, begin), "0.")) && !has(std::string(name.substr(0, end + 1)))) return true;
  }
  return false;
}

/// Of a hub folder, tensors that the model does not use are not misfits, except those of further layers, and neither are heads and poolers
/// that the folder does not have: they keep their initial values. Says both.
void allow_other_head(std::span<const ExpectedTensor> model, const Source& source, const LoadRule& rule, Match& match) {
  const auto list = [&](const std::vector<std::string>& names, std::string_view what, LogLevel level) {
    if (!names.empty()) log(level, cat(rule.from, ": ", names.size(), what, some_of(names)));
  };
  std::vector<std::string> unused, random;
  std::erase_if(match.unexpected, [&](size_t offered) {
    const std::string& name = source.offered[offered].name;
    const bool surplus = of_surplus_layer(name, names_in_scope(model, rule));
    if (!surplus) unused.push_back(name);
    return !surplus;
  });
  list(unused, " tensors of the folder are not used: ", LogLevel::kInfo);
  std::erase_if(match.missing, [&](size_t expected) {
    const std::string& name = model[expected].name;
    const std::string inner = rule.into.empty() ? name : name.substr(rule.into.size() + 1);
    const bool absent = hub_may_lack(source.hub->tensors(), inner, names_in_scope(model, rule));
    if (absent) random.push_back(name);
    return absent;
  });
  list(random, " tensors of the model are not in the folder and start at random: ", LogLevel::kWarning);
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

Tensor checked(const Tensor& stored, const ExpectedTensor& wanted, const LoadRule& rule) {
  const NonFiniteCount before = count_non_finite(stored);
  if (rule.check_finite && before.count > 0) {
    throw Error(ErrorCode::kInput, cat(rule.from, ": tensor '", wanted.name, "' contains ", before.count,
                                       before.count == 1 ? " value that is" : " values that are", " NaN or infinite, the first at ",
                                       index_text(before.first, stored.shape())))
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
    case DType::kF8E4M3: return scan<uint8_t>(tensor.data(), count, 0x7fu);
    default: return {};
  }
}

std::vector<std::string> weights_files(const std::string& from) {
  if (is_folder(from)) {
    if (is_checkpoint(from)) {
      const Checkpoint checkpoint(from);
      GALLEY_CHECK_INPUT(checkpoint.has_group("parameters") || checkpoint.has_group("buffers"), "checkpoint ", from,
                         " contains no parameters");
      return {cat(checkpoint.folder(), "/", kManifestName)};
    }
    const std::string weights = from + "/weights.safetensors";
    if (file_exists(weights)) return {weights};
    const std::vector<std::string> of_hub = hub_weights_files(from);
    if (!of_hub.empty() && !is_hub_folder(from)) static_cast<void>(HubFolder(from));  // says that config.json is missing
    if (!of_hub.empty()) return of_hub;
    if (is_hub_folder(from)) {
      throw Error(ErrorCode::kInput, cat("the folder ", from, " has a config.json, but no weights"))
          .suggest("put model.safetensors, or its shards with model.safetensors.index.json, there");
    }
    Error error(ErrorCode::kInput, cat("the folder ", from, " has no weights.safetensors"));
    const std::vector<std::string> checkpoints = checkpoint_folders(from + "/checkpoints");
    if (!checkpoints.empty())
      error.suggest(cat("its run has not finished; to use its newest checkpoint, set weights=", checkpoints.front()));
    throw error;
  }
  return {from};
}

namespace {

/// What to change where a folder's body has other shapes than the model; "" where only heads differ.
std::string size_difference(std::span<const ExpectedTensor> model, const Source& source, const LoadRule& rule, const Match& match) {
  bool body = false;
  for (const auto& [expected, offered] : match.misshapen) {
    const std::string inner = rule.into.empty() ? model[expected].name : model[expected].name.substr(rule.into.size() + 1);
    const std::string text = source.hub->size_difference(inner, model[expected].shape, source.offered[offered].shape);
    if (!text.empty()) return text + "; take config.json and the weights from the same model";
    body = body || !hub_may_lack(source.hub->tensors(), inner, names_in_scope(model, rule));
  }
  return body ? "the sizes in config.json, or in the recipe, are not those of the weights; take config.json and the weights from the same "
                "model"
              : "";
}

/// What helps where names do not fit; "" if that is not known.
std::string misfit_hint(const Source& source, const LoadRule& rule, const Match& match, size_t index) {
  const auto adapts = [&](size_t offered) { return is_adapter_tensor(source.offered[offered].name); };
  if (std::any_of(match.unexpected.begin(), match.unexpected.end(), adapts)) {
    const std::string run = is_folder(rule.from) ? rule.from : parent_folder(rule.from);
    return cat("these weights hold adapters (lora): name their run as the recipe (galley-predict ", run,
               "), or merge them: galley-weights merge-lora BASE ", run, "/adapter -o merged.safetensors");
  }
  for (const WeightsFile& file : source.files) {
    if (std::string hint = file.misfit_hint(); !hint.empty()) return hint;
  }
  const bool only_missing = !match.missing.empty() && match.unexpected.empty() && match.misshapen.empty();
  if (!source.hub)
    return only_missing && rule.strict
               ? cat("use the recipe of these weights; weights.load.", index, ".strict=false keeps the initial values of what is missing")
               : "";
  if (!match.unexpected.empty())
    return cat("the folder has more layers than config.json says; to leave them out, set weights.load.", index, ".ignore");
  if (!match.missing.empty())
    return "the weights have fewer layers or parts than config.json says; take config.json and all files of the weights from the same "
           "model";
  return "";
}

/// The opened sources of all rules, and what they fill.
struct Opened {
  std::vector<Source> sources;
  std::vector<Match> matches;
};

/// Opens and matches. Throws Error with a table if files and model do not match.
Opened open_all(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules) {
  Opened opened;
  std::vector<Source>& sources = opened.sources;
  std::vector<Match>& matches = opened.matches;
  std::vector<bool> filled(model.size(), false);
  for (const LoadRule& rule : rules) {
    sources.push_back(open_source(model, rule));
    matches.push_back(match_tensors(model, sources.back().offered, rule));
    for (const Match::Pair& pair : matches.back().pairs) filled[pair.expected] = true;
  }

  // Tensors that another rule fills are not missing, so misfits are known only now.
  std::string misfits, hint;
  for (size_t r = 0; r < rules.size(); ++r) {
    std::erase_if(matches[r].missing, [&](size_t expected) { return filled[expected]; });
    if (sources[r].hub) allow_other_head(model, sources[r], rules[r], matches[r]);
    LoadRule rule = rules[r];
    if (const std::string text = sources[r].hub ? size_difference(model, sources[r], rule, matches[r]) : ""; !text.empty())
      rule.difference = [text] { return text; };
    const std::string report = misfit_report(model, sources[r].offered, rule, matches[r]);
    if (report.empty()) continue;
    misfits += (misfits.empty() ? "" : "\n") + report;
    if (hint.empty()) hint = misfit_hint(sources[r], rule, matches[r], r);
  }
  if (!misfits.empty()) throw Error(ErrorCode::kInput, misfits).key("weights").suggest(hint);
  return opened;
}

using Take = std::function<void(const ExpectedTensor& tensor, const Tensor& values)>;

/// Gives all arrays; `release`: each is taken out of memory afterwards. Returns the tensors that no rule fills.
std::vector<std::string> load_with(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules, const Take& take, bool release) {
  const Opened opened = open_all(model, rules);
  std::vector<bool> filled(model.size(), false);
  for (size_t r = 0; r < rules.size(); ++r) {
    const LoadRule& rule = rules[r];
    const Source& source = opened.sources[r];
    const Match& match = opened.matches[r];
    std::set<std::string> casts;
    for (const Match::Pair& pair : match.pairs) {
      const TensorPlace& place = source.places[pair.offered];
      const ExpectedTensor& wanted = model[pair.expected];
      Tensor values = source.files[place.file].read(place.entry);
      if (place.transposed) values = transpose(values);
      if (values.dtype() != wanted.dtype) casts.insert(cat(values.dtype(), " to ", wanted.dtype));
      take(wanted, checked(values, wanted, rule));
      filled[pair.expected] = true;
      if (release) source.files[place.file].release();
    }
    if (!casts.empty()) log(LogLevel::kWarning, cat(rule.from, ": converted ", some_of({casts.begin(), casts.end()})));
    std::vector<std::string> missing, unexpected;
    for (const size_t expected : match.missing) missing.push_back(model[expected].name);
    for (const size_t offered : match.unexpected) unexpected.push_back(source.offered[offered].name);
    if (!missing.empty())
      log(LogLevel::kWarning,
          cat(rule.from, " (not strict): ", missing.size(), " tensors of the model keep their initial values: ", some_of(missing)));
    if (!unexpected.empty())
      log(LogLevel::kWarning,
          cat(rule.from, " (not strict): ", unexpected.size(), " tensors of the file are not used: ", some_of(unexpected)));
  }
  std::vector<std::string> kept;
  for (size_t i = 0; i < model.size(); ++i) {
    if (!filled[i]) kept.push_back(model[i].name);
  }
  return kept;
}

}  // namespace

LoadedWeights load_weights(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules) {
  LoadedWeights loaded;
  loaded.kept = load_with(
      model, rules, [&](const ExpectedTensor& tensor, const Tensor& values) { loaded.tensors.insert_or_assign(tensor.name, values); },
      false);
  return loaded;
}

std::vector<std::string> load_each_weight(std::span<const ExpectedTensor> model, std::span<const LoadRule> rules, const Take& take) {
  return load_with(model, rules, take, true);
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

Metadata read_weights_metadata(const std::string& from) {
  Metadata metadata = WeightsFile(weights_files(from).front()).metadata();
  if (is_hub_folder(from)) {
    if (const std::vector<std::string> names = HubFolder(from).categories(); !names.empty())
      metadata.emplace("galley.categories", nlohmann::json(names).dump());
  }
  return metadata;
}

}  // namespace galley
