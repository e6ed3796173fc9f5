#include "libcore/base/fields.h"

#include "libcore/base/error.h"

namespace galley {

void FieldVisitor::text(const FieldInfo& info, TextValue&) { GALLEY_ASSERT(false, "this visitor does not take text fields: ", info.name); }
void FieldVisitor::section(const FieldInfo& info, Fields&) { GALLEY_ASSERT(false, "this visitor does not take sections: ", info.name); }
void FieldVisitor::list(const FieldInfo& info, std::vector<std::unique_ptr<Fields>>&, std::unique_ptr<Fields> (*)()) {
  GALLEY_ASSERT(false, "this visitor does not take lists: ", info.name);
}
void FieldVisitor::component(const FieldInfo& info, Component&, ComponentKinds) {
  GALLEY_ASSERT(false, "this visitor does not take components: ", info.name);
}
void FieldVisitor::components(const FieldInfo& info, std::vector<Component>&, ComponentKinds) {
  GALLEY_ASSERT(false, "this visitor does not take components: ", info.name);
}
void FieldVisitor::pairs(const FieldInfo& info, std::vector<std::pair<std::string, std::string>>&) {
  GALLEY_ASSERT(false, "this visitor does not take maps of text: ", info.name);
}
bool FieldVisitor::present(const FieldInfo&, bool has_value) { return has_value; }

}  // namespace galley
