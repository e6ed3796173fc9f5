#include "libcore/train/resume.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "libcore/base/error.h"
#include "libcore/recipe/yaml_tree.h"

namespace galley {
namespace {

/// "a.b: value" lines of a dump, so that two recipes can be compared key by key. The dump is indented by two spaces a level.
std::vector<std::string> flat(const std::string& yaml) {
  std::vector<std::string> lines, path;
  std::istringstream in(yaml);
  for (std::string line; std::getline(in, line);) {
    const size_t indent = line.find_first_not_of(' ');
    if (indent == std::string::npos || line[indent] == '#') continue;
    path.resize(std::min(path.size(), indent / 2));
    while (path.size() < indent / 2) path.emplace_back();
    const std::string text = line.substr(indent);
    const size_t colon = text.find(':');
    path.push_back(text.substr(0, colon));
    std::string key;
    for (const std::string& part : path) {
      if (!part.empty()) key += (key.empty() ? "" : ".") + part;
    }
    lines.push_back(key + (colon == std::string::npos ? "" : text.substr(colon)));
  }
  return lines;
}

std::string key_of(const std::string& line) { return line.substr(0, line.find(':')); }

}  // namespace

ResumeCheck check_resume(const Recipe& old_recipe, const Recipe& new_recipe, const std::string& run) {
  Recipe old = old_recipe;
  old.log = new_recipe.log;
  old.checkpoint = new_recipe.checkpoint;
  old.threads = new_recipe.threads;
  old.device = new_recipe.device;
  old.about = new_recipe.about;
  old.name = new_recipe.name;
  old.evaluate = new_recipe.evaluate;
  old.train.duration = new_recipe.train.duration;
  const std::vector<std::string> before = flat(dump_recipe(old, DumpKind::kFull)), after = flat(dump_recipe(new_recipe, DumpKind::kFull));
  std::string keys;
  int differing = 0;
  const auto missing = [&](const std::vector<std::string>& from, const std::vector<std::string>& in) {
    for (const std::string& line : from) {
      if (std::find(in.begin(), in.end(), line) != in.end() || keys.find(key_of(line)) != std::string::npos) continue;
      if (++differing <= 8) keys += (keys.empty() ? "" : ", ") + key_of(line);
    }
  };
  missing(after, before);
  missing(before, after);
  if (!keys.empty()) {
    throw Error(ErrorCode::kRecipe, cat(run, " holds a run of another recipe: ", keys, differing > 8 ? cat(" and ", differing - 8, " more") : "", " differ"))
        .suggest("another folder (-o), the same values, or --force to start anew; only train.duration (longer), log, checkpoint, threads and device may change");
  }
  ResumeCheck check;
  const Duration& was = *old_recipe.train.duration;
  const Duration& is = *new_recipe.train.duration;
  check.same = was == is;
  check.longer = was.unit == is.unit && is.value > was.value;
  if (!check.same && !check.longer) {
    throw Error(ErrorCode::kRecipe, cat("train.duration of ", run, " is ", was.str(), ", now ", is.str(), ": a run can only be made longer, in the same unit"))
        .key("train.duration")
        .suggest("--force starts anew");
  }
  return check;
}

}  // namespace galley
