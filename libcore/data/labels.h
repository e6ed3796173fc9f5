#pragma once
// Labels of samples that are named by folders.

#include <string>
#include <vector>

namespace galley {

/// From folder names to class indices: `explicit_names` in their order, else the sorted distinct names. Throws where a folder is
/// not among the explicit names; `place` is for the message.
class ClassNames {
 public:
  ClassNames(std::vector<std::string> explicit_names, const std::vector<std::string>& folders, const std::string& place);
  int64_t label(const std::string& folder) const;
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::vector<std::string> names_;
  std::vector<std::pair<std::string, int64_t>> by_name_;
};

}  // namespace galley
