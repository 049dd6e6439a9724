# SPDX-License-Identifier: Apache-2.0
gpushm_test(inspect_explain_test SOURCES inspect_explain_test.cpp MODULES inspect LABEL unit SINGLE_THREADED)
