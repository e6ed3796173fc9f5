#include "libcore/infer/watched_metric.h"

#include <algorithm>

#include "libcore/base/error.h"
#include "libcore/tasks/task.h"

namespace galley {

void require_metric(const std::vector<std::string>& given, const std::string& metric, const std::string& key) {
  if (std::find(given.begin(), given.end(), metric) != given.end()) return;
  const std::string near = nearest(metric, given);
  std::string list;
  for (const std::string& name : given) list += (list.empty() ? "" : ", ") + name;
  const bool known = find_metric_info(metric) != nullptr;
  throw Error(ErrorCode::kRecipe,
              known ? cat("the evaluations do not compute the metric '", metric, "'") : cat("unknown metric '", metric, "'"))
      .key(key)
      .suggest(!near.empty() ? "did you mean '" + near + "'?"
               : known       ? "add it to metrics, or use one of " + list
                             : "known: " + list);
}

}  // namespace galley
