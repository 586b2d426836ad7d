# What `cmake --install` lays down: headers, libmok.so, libmok.a, mok.pc, and the CMake package with the targets mok::mok and
# mok::mok_static.
include(CMakePackageConfigHelpers)
set(mok_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/mok)

install(TARGETS mok mok_headers EXPORT mok_targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES $<TARGET_FILE:mok_static> DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/mok DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(EXPORT mok_targets NAMESPACE mok:: FILE mokTargets.cmake DESTINATION ${mok_package_dir})

# Sanitized objects need their runtime in every program that links them.
set(mok_static_libs ${MOK_STATIC_LIBS})
if(mok_sanitizers)
  list(APPEND mok_static_libs -fsanitize=${mok_sanitizers})
endif()
# Libraries stand by their names in what is installed, which may be moved to another machine: the CMake package looks for them when it is found, a
# linker in its own folders. For pkg-config, which does not look, a folder that the linker does not search by itself is a variable of mok.pc, which
# pkg-config --define-variable sets anew. No Requires.private there: pkg-config wants those packages from who links the shared library, too, and that
# one brings its own.
set(mok_static_names "") # files by the name that find_library takes, flags as they are
set(MOK_PC_FOLDERS "")
set(MOK_PC_LIBS_PRIVATE "")
foreach(library ${mok_static_libs})
  if(IS_ABSOLUTE ${library})
    get_filename_component(file ${library} NAME)
    get_filename_component(folder ${library} DIRECTORY)
    string(REGEX REPLACE "^lib([^.]*)[.](so|a)$" "\\1" name ${file})
    set(is_searched OFF)
    foreach(searched ${CMAKE_C_IMPLICIT_LINK_DIRECTORIES})
      if(EXISTS ${searched}/${file})
        set(is_searched ON)
      endif()
    endforeach()
    if(NOT is_searched AND NOT "${MOK_PC_FOLDERS}" MATCHES "=${folder}\n")
      string(APPEND MOK_PC_FOLDERS "${name}dir=${folder}\n")
      string(APPEND MOK_PC_LIBS_PRIVATE " -L\${${name}dir}")
    endif()
    set(library -l:${file})
    if(NOT name STREQUAL file)
      set(library -l${name})
    endif()
    list(APPEND mok_static_names ${name})
  else()
    list(APPEND mok_static_names ${library})
  endif()
  string(APPEND MOK_PC_LIBS_PRIVATE " ${library}")
endforeach()
configure_package_config_file(cmake/mokConfig.cmake.in ${CMAKE_BINARY_DIR}/mokConfig.cmake INSTALL_DESTINATION ${mok_package_dir}
                              PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/mokConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/mokConfig.cmake ${CMAKE_BINARY_DIR}/mokConfigVersion.cmake DESTINATION ${mok_package_dir})

# mok.pc's prefix is a way from the file itself, so that the tree may be moved.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}") # the prefix is the configured one: see options.cmake
  set(MOK_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  set(MOK_PC_LIBDIR ${CMAKE_INSTALL_LIBDIR})
else()
  file(RELATIVE_PATH way /x/${CMAKE_INSTALL_LIBDIR}/pkgconfig /x)
  set(MOK_PC_PREFIX "\${pcfiledir}/${way}")
  set(MOK_PC_LIBDIR "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
endif()
if(IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
  set(MOK_PC_INCLUDEDIR ${CMAKE_INSTALL_INCLUDEDIR})
else()
  set(MOK_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
configure_file(cmake/mok.pc.in ${CMAKE_BINARY_DIR}/mok.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/mok.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
