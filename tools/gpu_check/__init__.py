"""`make gpu-check`: is the engine right on this device, and how fast is it beside what the device could do?"""
