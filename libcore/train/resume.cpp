#include "libcore/train/resume.h"

#include <algorithm>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/recipe/schema.h"

namespace galley {
namespace {

constexpr size_t kKeysListed = 8;

/// The address of an item of a list of maps, as in overrides: its name, its type if that is unique, else its number.
std::string item_name(const YamlNode& list, size_t index) {
  for (const char* key : {"name", "type"}) {
    const YamlNode* own = list.items[index].find(key);
    if (own == nullptr || !own->is_scalar() || own->scalar.empty()) continue;
    const auto same = [&](const YamlNode& item) {
      const YamlNode* other = item.find(key);
      return other != nullptr && other->scalar == own->scalar;
    };
    if (std::count_if(list.items.begin(), list.items.end(), same) == 1) return own->scalar;
  }
  return std::to_string(index);
}

/// Appends the keys whose values differ, as deep as both trees have the same structure.
void differing_keys(const YamlNode& before, const YamlNode& after, const std::string& path, std::vector<std::string>& keys) {
  if (before == after) return;
  const auto below = [&](const std::string& part) { return path.empty() ? part : path + "." + part; };
  if (before.is_map() && after.is_map()) {
    const YamlNode *was = before.find("type"), *is = after.find("type");
    if (was != nullptr && is != nullptr && !(*was == *is)) return keys.push_back(below("type"));
    for (const YamlNode::Entry& entry : before.entries) {
      const YamlNode* other = after.find(entry.key);
      differing_keys(entry.value, other != nullptr ? *other : YamlNode(), below(entry.key), keys);
    }
    for (const YamlNode::Entry& entry : after.entries) {
      if (before.find(entry.key) == nullptr) keys.push_back(below(entry.key));
    }
    return;
  }
  const bool maps = before.is_list() && after.is_list() && before.items.size() == after.items.size() && before.items.front().is_map() &&
                    after.items.front().is_map();
  if (!maps) return keys.push_back(path);
  for (size_t i = 0; i < before.items.size(); ++i) {
    const std::string name = item_name(after, i);
    differing_keys(before.items[i], after.items[i], below(name == item_name(before, i) ? name : std::to_string(i)), keys);
  }
}

YamlNode tree_of(const Recipe& recipe) { return write_options(recipe, Recipe(*recipe.registry), DumpForm::kFull); }

/// Copies the keys that do not affect the results of training from `now`.
void ignore_what_may_differ(Recipe& old, const Recipe& now) {
  old.log = now.log;
  old.checkpoint = now.checkpoint;
  old.threads = now.threads;
  old.device = now.device;
  old.sharding = now.sharding;
  old.about = now.about;
  old.name = now.name;
  old.evaluate = now.evaluate;  // sections of other tools
  old.predict = now.predict;
  old.benchmark = now.benchmark;
  old.profile = now.profile;
  old.data.test = now.data.test;
  old.data.calibration = now.data.calibration;
  old.train.duration = now.train.duration;
  // Options of loading do not affect results. on_error concerns samples that cannot be read: with `fail` no finished step contained one,
  // and with `skip` the finished steps remain valid.
  const auto ignore_loading = [](Split& split, const Split& other) {
    split.workers = other.workers;
    split.prefetch = other.prefetch;
    split.on_error = other.on_error;
  };
  ignore_loading(old.data.train, now.data.train);
  if (old.data.val && now.data.val) ignore_loading(*old.data.val, *now.data.val);
  // Training reads `quantize` only for qat, and only galley-quantize reads these two keys.
  old.quantize.calibration = now.quantize.calibration;
  old.quantize.goal = now.quantize.goal;
  if (old.quantize.method != QuantMethod::kQat && now.quantize.method != QuantMethod::kQat) old.quantize = now.quantize;
}

}  // namespace

ResumeCheck check_resume(const Recipe& old_recipe, const Recipe& new_recipe, const std::string& run) {
  Recipe old = old_recipe;
  ignore_what_may_differ(old, new_recipe);
  std::vector<std::string> differing;
  differing_keys(tree_of(old), tree_of(new_recipe), "", differing);
  if (!differing.empty()) {
    std::string keys;
    for (size_t i = 0; i < std::min(differing.size(), kKeysListed); ++i) keys += (i > 0 ? ", " : "") + differing[i];
    if (differing.size() > kKeysListed) keys += cat(" and ", differing.size() - kKeysListed, " more");
    throw Error(ErrorCode::kRecipe, cat(run, " contains a run of another recipe: ", keys, differing.size() == 1 ? " differs" : " differ"))
        .key(differing.front())
        .suggest(
            "use another folder (-o), the same values, or --force to start again; train.duration may grow, and log, checkpoint, threads, "
            "device, sharding, "
            "data.test and the workers, prefetch and on_error of data.train and data.val may change");
  }
  ResumeCheck check;
  const Duration& was = *old_recipe.train.duration;
  const Duration& is = *new_recipe.train.duration;
  check.same = was == is;
  check.longer = was.unit == is.unit && is.value > was.value;
  if (!check.same && !check.longer) {
    throw Error(ErrorCode::kRecipe,
                cat("train.duration of ", run, " is ", was.str(), ", now ", is.str(), "; a run can only be extended, in the same unit"))
        .key("train.duration")
        .suggest("use --force to start again");
  }
  return check;
}

}  // namespace galley
