# cmake --install: programs to bin, recipes to share/galley/recipes, completions to where shells look for them, and oneDNN to lib/galley if
# it is not the system's. Nothing names an absolute path, so that an installed tree may be moved: programs find recipes and libraries
# relative to their own folder.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/recipes/ DESTINATION ${CMAKE_INSTALL_DATADIR}/galley/recipes)

if(GALLEY_ONEDNN AND DNNL_LIBRARY MATCHES "^${GALLEY_ONEDNN_ROOT}/")
  get_filename_component(library ${DNNL_LIBRARY} REALPATH)  # its file name is its soname
  install(FILES ${library} DESTINATION ${CMAKE_INSTALL_LIBDIR}/galley)
  file(RELATIVE_PATH from_bin ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR}/galley)
  set(CMAKE_INSTALL_RPATH "$ORIGIN/${from_bin}")
endif()

# galley_install(<tool>): the program, and the completions that it prints.
function(galley_install tool)
  install(TARGETS ${tool} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  set(folder ${CMAKE_BINARY_DIR}/completions/${tool})
  install(CODE "file(MAKE_DIRECTORY ${folder})
foreach(shell bash zsh fish)
  execute_process(COMMAND $<TARGET_FILE:${tool}> --completion \${shell} OUTPUT_FILE ${folder}/\${shell} COMMAND_ERROR_IS_FATAL ANY)
endforeach()")
  install(FILES ${folder}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${tool})
  install(FILES ${folder}/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _${tool})
  install(FILES ${folder}/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME ${tool}.fish)
endfunction()
