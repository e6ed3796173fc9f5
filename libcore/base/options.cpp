#include "libcore/base/options.h"

#include "libcore/base/error.h"

namespace galley {

void OptionVisitor::text(const OptionInfo& info, TextValue&) {
  GALLEY_ASSERT(false, "this visitor does not support  text options: ", info.name);
}
void OptionVisitor::section(const OptionInfo& info, Options&) {
  GALLEY_ASSERT(false, "this visitor does not support  sections: ", info.name);
}
void OptionVisitor::list(const OptionInfo& info, std::vector<std::unique_ptr<Options>>&, std::unique_ptr<Options> (*)()) {
  GALLEY_ASSERT(false, "this visitor does not support  lists: ", info.name);
}
void OptionVisitor::component(const OptionInfo& info, Component&, ComponentKinds) {
  GALLEY_ASSERT(false, "this visitor does not support  components: ", info.name);
}
void OptionVisitor::components(const OptionInfo& info, std::vector<Component>&, ComponentKinds) {
  GALLEY_ASSERT(false, "this visitor does not support  components: ", info.name);
}
void OptionVisitor::pairs(const OptionInfo& info, std::vector<std::pair<std::string, std::string>>&) {
  GALLEY_ASSERT(false, "this visitor does not support  maps of text: ", info.name);
}
bool OptionVisitor::present(const OptionInfo&, bool has_value) { return has_value; }

}  // namespace galley
