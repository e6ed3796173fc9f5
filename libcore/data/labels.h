#pragma once
// Class indices of samples whose classes are folders.

#include <string>
#include <vector>

namespace galley {

/// Maps folder names to class indices: positions in `explicit_names`, or, if that is empty, in the sorted distinct names. Throws Error
/// (exit 4) if a folder is not among the explicit names; `place` starts the message.
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
