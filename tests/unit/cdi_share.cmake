# SPDX-License-Identifier: Apache-2.0
gpushm_test(cdi_share_device_test LABEL unit SINGLE_THREADED SOURCES cdi_share_test.cpp MODULES spec)
