#pragma once
// The model that is an ONNX file, as a recipe would name it.

#include <string>

#include "libcore/nn/zoo.h"
#include "tests/nn/set_field.h"

namespace galley {

inline Component onnx_component(const std::string& path) {
  class Path : public Setter {
   public:
    explicit Path(std::string path) : Setter("path", {}), path_(std::move(path)) {}
    using Setter::field;
    void field(const FieldInfo& info, std::string& value) override {
      if (info.name == "path") value = path_;
    }

   private:
    std::string path_;
  } setter(path);
  Component model = default_model("onnx");
  model.params->fields(setter);
  return model;
}

}  // namespace galley
