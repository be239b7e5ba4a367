"""The audit: does the running code keep the promises that the accounting rests on?"""
