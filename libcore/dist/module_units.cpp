#include <algorithm>
#include <map>

#include "libcore/dist/graph_model.h"

namespace galley {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// A module with its submodules in order of their first parameter.
struct Module {
  std::string path, name;
  int64_t own = 0;            // elements of its own parameters
  std::vector<size_t> owned;  // their indices
  std::vector<size_t> children;

  bool lists(const std::vector<Module>& all) const {
    return !children.empty() && std::all_of(children.begin(), children.end(), [&](size_t child) { return is_number(all[child].name); });
  }
};

class Wrapper {
 public:
  Wrapper(const std::vector<std::pair<std::string, int64_t>>& modules, const WrapRule& rule) : rule_(rule) {
    all_.push_back({});
    for (size_t i = 0; i < modules.size(); ++i) {
      Module& module = all_[find(modules[i].first)];
      module.own += modules[i].second;
      module.owned.push_back(i);
    }
    units_.of.assign(modules.size(), -1);
  }

  ModuleUnits run() {
    Rest rest = wrap(0);
    if (!rest.parameters.empty()) add("", rest);
    sort();
    return std::move(units_);
  }

 private:
  /// Parameters that are not in a unit yet.
  struct Rest {
    int64_t elements = 0;
    std::vector<size_t> parameters;
    void operator+=(const Rest& other) {
      elements += other.elements;
      parameters.insert(parameters.end(), other.parameters.begin(), other.parameters.end());
    }
  };

  size_t find(const std::string& path) {
    size_t at = 0;
    for (size_t begin = 0; begin < path.size();) {
      const size_t dot = std::min(path.find('.', begin), path.size());
      const std::string name = path.substr(begin, dot - begin);
      size_t next = 0;
      for (const size_t child : all_[at].children) {
        if (all_[child].name == name) next = child;
      }
      if (next == 0) {
        next = all_.size();
        all_.push_back({.path = path.substr(0, dot), .name = name});
        all_[at].children.push_back(next);
      }
      at = next;
      begin = dot + 1;
    }
    return at;
  }

  /// Parameters of a module and all below it.
  size_t count(size_t index) const {
    size_t sum = all_[index].owned.size();
    for (const size_t child : all_[index].children) sum += count(child);
    return sum;
  }

  void add(const std::string& name, const Rest& rest) {
    for (const size_t parameter : rest.parameters) units_.of[parameter] = static_cast<int>(units_.names.size());
    units_.names.push_back(name);
  }

  Rest wrap(size_t index) {
    const Module module = all_[index];
    Rest rest{.elements = module.own, .parameters = module.owned};
    const bool list = module.lists(all_) && !rule_.selects;
    Rest group;
    std::string first;
    for (const size_t child : module.children) {
      Rest more = wrap(child);
      // What is left of an item next to units inside it stays with the module above.
      if (!list || more.parameters.size() < count(child)) {
        rest += more;
        continue;
      }
      if (more.parameters.empty()) continue;
      if (group.parameters.empty()) first = all_[child].path;
      group += more;
      if (group.elements < rule_.parameters) continue;
      add(first == all_[child].path ? first : first + ".." + all_[child].name, group);
      group = Rest();
    }
    rest += group;
    const bool unit = index != 0 && !list && (rule_.selects ? rule_.selects(module.path) : rest.elements >= rule_.parameters);
    if (!unit || rest.parameters.empty()) return rest;
    add(module.path, rest);
    return {};
  }

  /// Units in the order of their first parameter.
  void sort() {
    std::vector<int> order(units_.names.size(), -1);
    std::vector<std::string> names;
    for (int& unit : units_.of) {
      int& place = order[static_cast<size_t>(unit)];
      if (place < 0) {
        place = static_cast<int>(names.size());
        names.push_back(units_.names[static_cast<size_t>(unit)]);
      }
      unit = place;
    }
    units_.names = std::move(names);
  }

  const WrapRule& rule_;
  std::vector<Module> all_;
  ModuleUnits units_;
};

}  // namespace

ModuleUnits module_units(const std::vector<std::pair<std::string, int64_t>>& modules_and_elements, const WrapRule& rule) {
  return Wrapper(modules_and_elements, rule).run();
}

}  // namespace galley
