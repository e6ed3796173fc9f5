#include "libcore/weights/match.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "libcore/base/error.h"
#include "libcore/base/glob.h"
#include "libcore/weights/old_names.h"

namespace galley {
namespace {

constexpr std::string_view kBatchCounter = "num_batches_tracked";
constexpr size_t kRowsShown = 40;
constexpr size_t kNamesListed = 8;
constexpr size_t kCandidatesSearched = 2000;  // limit, because each similar name costs an edit distance

bool is_batch_counter(std::string_view name) {
  return name == kBatchCounter || name.ends_with(std::string(".") + std::string(kBatchCounter));
}

/// The name after one rule of `rename`, or nullopt if the rule does not match.
std::optional<std::string> renamed(std::string_view name, const std::string& from, const std::string& to) {
  const size_t star = from.find('*');
  if (star == std::string::npos) {
    if (!name.starts_with(from)) return std::nullopt;
    const bool at_border = from.empty() || from.ends_with('.') || name.size() == from.size() || name[from.size()] == '.';
    if (!at_border) return std::nullopt;
    return to + std::string(name.substr(from.size()));
  }
  const std::string_view head = std::string_view(from).substr(0, star), tail = std::string_view(from).substr(star + 1);
  if (name.size() < head.size() + tail.size() || !name.starts_with(head) || !name.ends_with(tail)) return std::nullopt;
  std::string result = to;
  if (const size_t place = result.find('*'); place != std::string::npos)
    result.replace(place, 1, name.substr(head.size(), name.size() - head.size() - tail.size()));
  return result;
}

/// Whether `to` represents every value of `from` exactly, so that a cast hides no rounding.
bool holds_exactly(DType from, DType to) {
  if (!is_floating(from) || !is_floating(to)) return false;
  return (to == DType::kF64 && from != DType::kF64) || (to == DType::kF32 && (from == DType::kF16 || from == DType::kBF16));
}

std::string name_below(const std::string& module, const std::string& name) { return module.empty() ? name : module + "." + name; }

std::vector<std::string> names_of(std::span<const OfferedTensor> file) {
  std::vector<std::string> names;
  for (const OfferedTensor& tensor : file) {
    if (names.size() < kCandidatesSearched) names.push_back(tensor.name);
  }
  return names;
}

[[noreturn]] void fail_unused(std::string_view key, const std::string& pattern, std::vector<std::string> names) {
  // Also compare with module paths, because a pattern may name a module.
  const size_t count = names.size();
  for (size_t i = 0; i < count; ++i) {
    for (size_t dot = names[i].find('.'); dot != std::string::npos; dot = names[i].find('.', dot + 1))
      names.push_back(names[i].substr(0, dot));
  }
  Error error(ErrorCode::kRecipe, cat("weights.", key, ": '", pattern, "' matches no tensor"));
  const std::string near = nearest(pattern, names);
  error.key(cat("weights.", key)).suggest(near.empty() ? "remove it" : cat("did you mean '", near, "'?"));
  throw error;
}

std::string type_text(const ExpectedTensor& tensor) { return cat(tensor.dtype, " ", tensor.shape); }
std::string type_text(const OfferedTensor& tensor) {
  return cat(tensor.dtype ? std::string(dtype_name(*tensor.dtype)) : tensor.dtype_text, " ", tensor.shape);
}

std::string yaml_quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    quoted += letter;
  }
  return quoted + "\"";
}

}  // namespace

std::string apply_renames(std::string_view name, const std::vector<std::pair<std::string, std::string>>& rename) {
  for (const auto& [from, to] : rename) {
    if (std::optional<std::string> next = renamed(name, from, to)) return *std::move(next);
  }
  return std::string(name);
}

bool selects(std::string_view pattern, std::string_view name) {
  if (glob_matches(pattern, name)) return true;
  for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.', dot + 1)) {
    if (glob_matches(pattern, name.substr(0, dot))) return true;
  }
  return false;
}

Match match_tensors(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file, const LoadRule& rule) {
  Match match;
  std::vector<bool> pattern_used(rule.ignore.size(), false), rename_used(rule.rename.size(), false);
  const auto ignored = [&](const std::string& name) {
    bool any = false;
    for (size_t i = 0; i < rule.ignore.size(); ++i) {
      if (!selects(rule.ignore[i], name)) continue;
      pattern_used[i] = any = true;
    }
    return any;
  };

  std::unordered_map<std::string, size_t> open;  // names of the model, in scope and not ignored
  for (size_t i = 0; i < model.size(); ++i) {
    if (ignored(model[i].name)) {
      match.ignored.push_back(i);
    } else if (rule.into.empty() || model[i].name.starts_with(rule.into + ".")) {
      open[model[i].name] = i;
    }
  }
  if (!rule.into.empty() && !model.empty() && open.empty() && match.ignored.empty()) {
    std::vector<std::string> names;
    for (const ExpectedTensor& tensor : model) names.push_back(tensor.name);
    fail_unused("into", rule.into, std::move(names));
  }

  std::unordered_map<std::string, size_t> taken;  // final name -> index in the file
  for (size_t i = 0; i < file.size(); ++i) {
    std::string name = file[i].name;
    for (size_t r = 0; r < rule.rename.size(); ++r) {
      if (const std::optional<std::string> next = renamed(name, rule.rename[r].first, rule.rename[r].second)) {
        name = *next;
        rename_used[r] = true;
        break;
      }
    }
    name = name_below(rule.into, name);
    if (!open.contains(name)) {
      if (std::string present = present_name(name); open.contains(present)) name = std::move(present);
    }
    // Both calls are needed: each marks the patterns it uses.
    const bool by_own_name = ignored(file[i].name), by_final_name = ignored(name);
    if (by_own_name || by_final_name) continue;
    const auto [earlier, is_new] = taken.insert({name, i});
    GALLEY_CHECK(is_new, "weights.rename: '", file[earlier->second].name, "' and '", file[i].name, "' both become '", name, "'");
    const auto found = open.find(name);
    if (found == open.end()) {
      if (!is_batch_counter(name)) match.unexpected.push_back(i);
      continue;
    }
    const ExpectedTensor& wanted = model[found->second];
    const Match::Pair pair{found->second, i};
    const bool allowed = rule.cast && file[i].dtype.has_value() && is_floating(*file[i].dtype) == is_floating(wanted.dtype) &&
                         *file[i].dtype != DType::kBool && wanted.dtype != DType::kBool;
    const bool castable = allowed || (file[i].dtype.has_value() && holds_exactly(*file[i].dtype, wanted.dtype));
    if (!(wanted.shape == file[i].shape)) {
      match.misshapen.push_back(pair);
    } else if (file[i].dtype != wanted.dtype && !castable) {
      match.mistyped.push_back(pair);
    } else {
      match.pairs.push_back(pair);
    }
    open.erase(found);
  }
  for (size_t i = 0; i < model.size(); ++i) {
    if (open.count(model[i].name) != 0 && !is_batch_counter(model[i].name)) match.missing.push_back(i);
  }

  for (size_t i = 0; i < rule.ignore.size(); ++i) {
    if (pattern_used[i]) continue;
    std::vector<std::string> names = names_of(file);
    for (const ExpectedTensor& tensor : model) names.push_back(tensor.name);
    fail_unused("ignore", rule.ignore[i], std::move(names));
  }
  for (size_t r = 0; r < rule.rename.size(); ++r) {
    if (!rename_used[r]) fail_unused("rename", rule.rename[r].first, names_of(file));
  }
  return match;
}

/// The unexpected tensors, not yet used, that a rule maps to open names of the model with the same shape; {} where many shapes differ: the
/// names belong to other layers then, and a bias of the same size is chance.
static std::vector<std::pair<size_t, std::string>> mapped_by(const std::pair<std::string, std::string>& rule,
                                                             std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file,
                                                             const std::vector<size_t>& unexpected, const std::vector<bool>& used,
                                                             const std::unordered_map<std::string, size_t>& open) {
  std::vector<std::pair<size_t, std::string>> agreeing;
  size_t differing = 0;
  for (const size_t offered : unexpected) {
    if (used[offered]) continue;
    const std::optional<std::string> name = renamed(file[offered].name, rule.first, rule.second);
    const auto target = name ? open.find(*name) : open.end();
    if (target == open.end()) continue;
    if (model[target->second].shape == file[offered].shape) {
      agreeing.emplace_back(offered, *name);
    } else {
      ++differing;
    }
  }
  if (agreeing.size() <= 2 * differing) agreeing.clear();
  return agreeing;
}

// Two names can match if their shapes are equal and they have a common ending. The differing prefixes are a candidate rule, and the
// candidate that explains the most tensors wins. A rule must keep the shapes of most tensors that it maps; {} unless, with all rules, most
// tensors of the smaller side match.
std::vector<std::pair<std::string, std::string>> propose_renames(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file,
                                                                 const LoadRule& rule, const Match& match) {
  std::unordered_map<std::string, std::vector<size_t>> by_ending;
  for (const size_t offered : match.unexpected) {
    const std::string& name = file[offered].name;
    by_ending[name].push_back(offered);
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      by_ending[name.substr(dot + 1)].push_back(offered);
  }
  const auto wanted_name = [&](size_t expected) {
    const std::string& name = model[expected].name;
    return rule.into.empty() ? name : name.substr(std::min(name.size(), rule.into.size() + 1));
  };
  using Rename = std::pair<std::string, std::string>;
  std::map<Rename, int> votes;
  std::vector<size_t> unexplained;
  for (const size_t expected : match.missing) {
    const std::string name = wanted_name(expected);
    bool found = false;
    for (size_t start = 0; !found && start != std::string::npos;) {
      const auto candidates = by_ending.find(name.substr(start));
      if (candidates != by_ending.end()) {
        for (size_t i = 0; i < std::min<size_t>(candidates->second.size(), 16); ++i) {
          const OfferedTensor& tensor = file[candidates->second[i]];
          if (!(tensor.shape == model[expected].shape)) continue;
          const std::string ending = name.substr(start);
          ++votes[{tensor.name.substr(0, tensor.name.size() - ending.size()), name.substr(0, start)}];
          found = true;
        }
      }
      const size_t dot = name.find('.', start);
      start = dot == std::string::npos ? dot : dot + 1;
    }
    if (!found) unexplained.push_back(expected);
  }
  std::vector<std::pair<int, Rename>> ranked;
  for (const auto& [rename, count] : votes) ranked.push_back({-count, rename});
  std::sort(ranked.begin(), ranked.end());

  // Keep a rule if it places a tensor that no better rule has placed.
  std::unordered_map<std::string, size_t> open;
  for (const size_t expected : match.missing) open[wanted_name(expected)] = expected;
  std::vector<bool> used(file.size(), false);
  std::vector<Rename> proposals;
  size_t placed = match.pairs.size();
  const auto place = [&](const Rename& candidate) {
    const std::vector<std::pair<size_t, std::string>> agreeing = mapped_by(candidate, model, file, match.unexpected, used, open);
    if (agreeing.empty()) return;
    for (const auto& [offered, name] : agreeing) {
      used[offered] = true;
      open.erase(name);
    }
    placed += agreeing.size();
    proposals.push_back(candidate);
  };
  for (const auto& [count, candidate] : ranked) {
    if (proposals.size() >= kRowsShown) break;
    place(candidate);
  }
  for (const size_t expected : unexplained) {
    if (proposals.size() >= kRowsShown) break;
    std::vector<std::string> same_shape;
    for (const size_t offered : match.unexpected) {
      if (!used[offered] && file[offered].shape == model[expected].shape && same_shape.size() < kCandidatesSearched)
        same_shape.push_back(file[offered].name);
    }
    const std::string near = same_shape.size() == 1 ? same_shape.front() : nearest(wanted_name(expected), same_shape);
    if (!near.empty()) place({near, wanted_name(expected)});
  }
  // Between two different models a few tensors agree by chance.
  if (2 * placed <= std::min(model.size(), file.size())) return {};
  return proposals;
}

namespace {

/// What the user can change where names or shapes do not fit, in lines that begin with "\n".
std::string misfit_remedies(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file, const LoadRule& rule,
                            const Match& match, bool names_count) {
  std::string text;
  const auto proposals = names_count ? propose_renames(model, file, rule, match) : std::vector<std::pair<std::string, std::string>>();
  if (!proposals.empty()) {
    text += "\nthese rules would match them:\n  weights:\n    load:\n      from: " + rule.from + "\n      rename:";
    for (const auto& [from, to] : proposals) text += cat("\n        ", yaml_quoted(from), ": ", yaml_quoted(to));
  } else if (const std::string difference = !match.misshapen.empty() && rule.difference ? rule.difference() : ""; !difference.empty()) {
    text += "\n" + difference;
  } else if (!match.misshapen.empty()) {
    std::string names;
    for (size_t i = 0; i < std::min(match.misshapen.size(), kNamesListed); ++i)
      names += (i ? ", " : "") + yaml_quoted(model[match.misshapen[i].expected].name);
    text += cat("\nto keep the model's initial values there, set in weights.load: ignore: [", names,
                match.misshapen.size() > kNamesListed ? ", ..." : "", "]");
  }
  if (!match.mistyped.empty()) text += "\nto convert the dtypes (each value is rounded), set in weights.load: cast: true";
  return text;
}

}  // namespace

std::string misfit_report(std::span<const ExpectedTensor> model, std::span<const OfferedTensor> file, const LoadRule& rule,
                          const Match& match) {
  const bool names_count = rule.strict || match.pairs.empty();
  const size_t missing = names_count ? match.missing.size() : 0, unexpected = names_count ? match.unexpected.size() : 0;
  if (missing + unexpected + match.misshapen.size() + match.mistyped.size() == 0) return "";

  std::vector<std::string> missing_names, unexpected_names;
  for (const size_t i : match.missing) {
    if (missing_names.size() < kCandidatesSearched) missing_names.push_back(model[i].name);
  }
  for (const size_t i : match.unexpected) {
    if (unexpected_names.size() < kCandidatesSearched) unexpected_names.push_back(file[i].name);
  }

  using Row = std::vector<std::string>;
  std::vector<Row> rows{{"problem", "tensor", "model", "file", "near"}};
  const auto dash = [](std::string text) { return text.empty() ? std::string("-") : text; };
  const auto add = [&](size_t count, const auto& row_of) {
    for (size_t i = 0; i < std::min(count, kRowsShown); ++i) rows.push_back(row_of(i));
    if (count > kRowsShown) rows.push_back({"", cat("... and ", count - kRowsShown, " more"), "", "", ""});
  };
  add(match.misshapen.size(), [&](size_t i) {
    const auto& [expected, offered] = match.misshapen[i];
    return Row{"shape", model[expected].name, type_text(model[expected]), type_text(file[offered]), "-"};
  });
  add(match.mistyped.size(), [&](size_t i) {
    const auto& [expected, offered] = match.mistyped[i];
    return Row{"dtype", model[expected].name, type_text(model[expected]), type_text(file[offered]), "-"};
  });
  add(missing, [&](size_t i) {
    const ExpectedTensor& tensor = model[match.missing[i]];
    return Row{"missing", tensor.name, type_text(tensor), "-", dash(nearest(tensor.name, unexpected_names))};
  });
  add(unexpected, [&](size_t i) {
    const OfferedTensor& tensor = file[match.unexpected[i]];
    return Row{"unexpected", tensor.name, "-", type_text(tensor), dash(nearest(tensor.name, missing_names))};
  });

  std::vector<size_t> widths(rows.front().size(), 0);
  for (const Row& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) widths[column] = std::max(widths[column], row[column].size());
  }
  std::string text = cat(rule.from, " does not fit the model: ", match.pairs.size(), " tensors fit, ", missing, " missing, ", unexpected,
                         " unexpected, ", match.misshapen.size(), " with another shape, ", match.mistyped.size(), " with another dtype");
  for (const Row& row : rows) {
    std::string line = " ";
    for (size_t column = 0; column < row.size(); ++column)
      line += " " + row[column] + std::string(widths[column] - row[column].size() + 1, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    text += "\n" + line;
  }
  return text + misfit_remedies(model, file, rule, match, names_count);
}

}  // namespace galley
