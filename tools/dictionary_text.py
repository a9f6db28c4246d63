"""The words, sentences and snippets that the frame dictionary is trained on; all of it written for this purpose.

«name» stands for a value that `make_dictionary` puts in. Snippets are separated by a line of %%.
"""

from __future__ import annotations

__all__ = ["ASSISTANT", "CODE", "DATA", "FILLERS", "KEYS", "MARKDOWN", "OUTPUT", "PROSE", "USER", "WORDS"]

WORDS = """
i i'm i've i'll it's don't doesn't isn't can't won't you're that's there's let's we're didn't couldn't wouldn't
he him her herself himself itself myself your yours our ours mine us my me somebody nobody anybody anyone anywhere
above across along around behind below beneath beside beyond despite except inside near onto outside past per since
throughout till toward towards under underneath unlike until upon via almost always never often sometimes rarely soon
later early late again still yet even just quite rather really perhaps maybe together apart away forward enough
big small large long short high low old young new good bad great little few many much more most less easy hard simple
open closed free full real true right wrong left main whole half clear dark light strong weak warm cold hot fast slow
think thought know knew feel felt believe understand explain tell told ask asked speak talk listen hear heard see saw
seen look watch show shown find found lose lost keep kept hold held bring brought carry send sent receive get got give
gave take took put set let begin began start stop end finish continue wait stay leave left come came go went gone move
turn walk run drive travel build built break broke cut draw drew grow grew learn teach help play pay paid buy bought sell
sold spend spent save win meet met follow lead live die eat drink sleep open close choose chose decide hope wish want need
man woman men women child children boy girl person people friend family mother father brother sister student teacher
doctor worker president minister government state country nation city town village street road house home room door
window wall floor school university hospital office shop church station airport market bank hotel restaurant kitchen
water air fire earth sun moon star sky wind rain snow river sea ocean lake mountain forest tree plant flower animal dog
cat horse bird fish food bread meat milk coffee tea sugar salt oil gold iron stone wood glass paper book letter word
story song music film picture game ball team club member group party law right power war peace army police court
body head face eye ear mouth hand arm leg foot heart blood skin bone mind life death health disease pain medicine
hour minute second day night morning afternoon evening monday tuesday wednesday thursday friday saturday sunday january
february march april june july august september october november december spring summer autumn winter season century
one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty hundred thousand million billion
black white red green blue yellow brown grey color colour north south east west european american english german french
history science nature culture society education religion politics economy industry technology computer internet phone
website software hardware machine engine energy electric nuclear physical chemical biological medical legal social
political economic financial national international local public private personal human natural modern ancient
function value returns return argument arguments method methods default string strings integer float boolean type types
module package import imports file files directory folder path paths error errors exception exceptions message messages
result results response request requests user users data database query queries column columns table index key keys
option options parameter parameters configuration settings setting environment variable variables version versions update
updates updated create created delete deleted remove removed add added change changed changes replace replaced rename
current currently existing previous previously following specified provided required optional available supported
support supports implement implemented implementation interface instance instances define defined definition
description documentation document documents information example examples section sections content contents
character characters line lines number numbers size length width limit maximum minimum average total count
process processes thread threads memory performance server client service services network connection
connections session account email password token tokens access permission permissions security policy
application applications system systems operation operations command commands output input build builds release
project projects repository branch commit commits merge pull review code source target test tests testing failed failing
passes passed failure failures fix fixed bug issue issues warning warnings debug log logs logging trace status state
before after because however therefore although instead without within between through whether either neither
another something anything everything nothing someone everyone already actually probably usually generally
especially specifically additionally finally first second third exactly directly correctly automatically
different similar same separate single multiple several various certain particular specific general common
important necessary possible impossible sufficient appropriate relevant useful likely unlikely
customer customers order orders product products price prices payment payments invoice invoices amount currency
shipping delivery address company business market sales report reports analysis summary research study studies
team member members manager meeting schedule calendar deadline today tomorrow yesterday week month months year
question questions answer answers problem problems solution solutions approach approaches reason reasons
consider considered considering include includes included including contain contains containing require requires
provide provides provided providing allow allows allowed allowing return returned returning call called calling
used using uses make makes making take takes taking given giving written writing reading running working looking
expected unexpected missing invalid valid unknown known empty null true false none undefined
performance efficient expensive faster slower larger smaller higher lower better worse best least
condition connection collection direction production section selection action position option transaction
development environment management statement element component requirement improvement argument document
"""
"""Beside those of the sentences below."""

PROSE = """
The function returns a new list that contains only the items for which the condition is true. If the value is not
given, the default is used instead. Note that this does not change the original object; it creates a copy of it.

In order to understand why this happens, it is important to look at how the data is stored. Each of the records has its
own key, and the key is used to find the record in the table. As a result, a lookup takes the same time no matter how
many records there are.

However, there are several reasons why this may not be the best choice. First of all, the size of the file can be much
larger than the amount of memory that is available. On the other hand, reading it one line at a time would be slower
than it needs to be.

For example, if you have more than one version of the package installed, the first one that is found on the path will be
used. This is usually what you want, but it can lead to unexpected results when the two versions are different.

Most of the people who took part in the study said that they would rather work from home at least two or three days a
week. At the same time, many of them felt that it had become more difficult to know what other members of the team were
doing.

There was a time when everyone thought that this could not be done. It has been more than ten years since then, and
today it is something that we do every day without even thinking about it.

The company was founded in the early years of the last century and is one of the largest of its kind in the world. Over
the course of the past year, its sales have grown by about twelve percent, while the cost of production has remained
almost the same.

When the connection is closed by the other side, an error is raised. The caller should be prepared to handle this, for
instance by waiting for a short time and then trying again. If the request still fails after a number of attempts, it is
likely that the server is not available.

This section describes how to set up the environment, what the most common problems are, and how to solve them. It is
assumed that you already have an account and that you know how to use the command line.

It should be noted that these numbers are only an estimate. They are based on the information that was available at the
time, and they may change as more data becomes available. In particular, the difference between the two groups is too
small to be sure that it is real.

The purpose of this document is to provide an overview of the system and of the way in which its parts work together. It
is not meant to be complete, and it does not replace the reference documentation.

If the argument is a string, it must be the name of an existing attribute. Otherwise, an exception is raised. This
method is called with the same arguments as the constructor, and its return value is ignored.

The object must support the methods described below; otherwise a type error is raised. Changed in version 3: the
parameter is now optional. See also the section on the standard types for more information about this.

An expression is evaluated from left to right. The statement that follows is executed only if the result is true, and
the names that are defined inside the block are local to it. The same rules apply to classes and to functions, as well
as to modules.

You can use this option to specify the maximum number of characters per line. The default value is 80. If it is set to
zero, there is no limit. Any other value must be a positive integer.

By default, all of the files in the current directory are included. To exclude a file, add its name to the list. The
order of the entries is not important, except where two of them refer to the same file.

Although the weather was not very good, we had a great time. We spent the first few days near the sea and then went up
into the mountains, where it was much colder than we had expected. The food was very good, and the people were friendly.

She had always wanted to see the old part of the city, so they took the train early in the morning and walked through
the streets until it was dark. He said that it was one of the best days of his life, and that he would like to come back
some time with his children.

According to the report, the number of people who have access to clean water has increased by more than a third since
the beginning of the century. Nevertheless, there is still a great deal of work to be done, especially in the parts of
the country that are far from the larger cities.

One of the main advantages of this approach is that it is simple. It requires no changes to the existing code, it is easy
to test, and it can be removed again at any time. The main disadvantage is that it does not scale well: as soon as there
are more than a few thousand users, it becomes too slow.

The government has announced that it will change the rules for small businesses from next year. Under the new law, each
company must keep a record of all payments that it has received, together with the name and the address of the customer.

Please make sure that your password is at least twelve characters long and that you do not use it for any other service.
You will receive an email with a link that allows you to confirm your address. If you did not ask for this, you can
ignore the message.

Security is not something that can be added at the end. Every request has to be checked, every input has to be validated,
and no one should be given more permissions than are necessary for the work that they have to do.

The results of the analysis show that there is a strong relationship between the two variables. This is consistent with
the findings of previous research, which suggests that the effect is caused by a combination of several factors rather
than by a single one.

Once the process has been started, it continues to run in the background until it is stopped or until an error occurs.
Its output is written to a log file, and its current state can be seen at any time with the status command.

What is the best way to learn a new language? There is no single answer to this question, because people learn in
different ways. Some of them like to read, others prefer to listen, and still others have to write things down in order
to remember them.

Thank you very much for your order. Your package has been sent today and should be with you within three to five working
days. If you have any questions about your delivery, please do not hesitate to contact us. We are looking forward to
hearing from you.

With regard to the performance of the application, we have found that most of the time is spent waiting for the
database. An additional index on this column would make the query about ten times faster, at the expense of a little more
space on the disk.

Each element of the sequence is compared with the one that comes before it. If they are equal, the second one is removed;
otherwise, both of them are kept. The operation is repeated until there are no more elements left that could be compared.

Such a change would have an effect on all of the clients that depend on the old behaviour. Therefore, it should be
introduced step by step: first as an option that is turned off by default, then with a warning, and finally, in the next
major version, as the only way.

This software is free to use, to change and to share, as long as the conditions of the license are met. It is provided as
it is, without a promise of any kind that it will work for you or that it does not contain any errors.

Perhaps the most important thing to remember is that there are always other people who will have to read what you have
written. Make it as clear and as simple as you can, say why something is done and not only how, and leave out everything
that is not necessary.

The rest of the world knows little about what it was like to live there during the war. Those who were children at that
time are now more than eighty years old, and with every year there are fewer of them who can tell their story.

An instance of this class represents a single connection to the server. It is created when the application is started,
it can be used by several threads at the same time, and it must be closed when it is no longer needed. Returns true if
the operation was successful, and false otherwise.

The following example shows how a table can be created, how rows are inserted into it, and how they can be selected,
updated and deleted. All of these operations are part of a transaction, which means that either all of them take effect
or none of them does.

Improvements: added support for the new version of the format; removed the dependency on an external library; fixed a
bug which caused the program to crash when the configuration file was empty; updated the translations and the manual
page; the build no longer fails on systems where the compiler is not in the standard location.

If the patient has a high temperature for more than three days, or if the pain does not become better, a doctor should be
asked. The treatment depends on the cause, on the age of the patient and on other conditions that may be present.

Whether it is better to rent or to buy depends on how long you intend to stay, on the interest that you would have to
pay, and on how the prices in your area are going to develop. Nobody knows the future, but it is usually possible to make
a reasonable estimate.

Water is heated until it begins to boil. Add the vegetables, reduce the heat, and let everything cook for about twenty
minutes. In the meantime, cut the bread into small pieces and put them in the oven together with a little oil and salt.

In general, a distinction is made between three kinds of errors: those that are caused by the user, those that are caused
by the environment, and those that are caused by a mistake in the program itself. Only the last kind should ever lead to
a message that contains a stack trace.

Even though both of the methods lead to the same result, they differ in the amount of work that has to be done before
the first result is available. This is why the second one is used whenever the number of items is unknown, or where only
some of the items are likely to be needed.

It looks as if the question has already been answered somewhere else. In this case, I would suggest that we close this
issue and continue the discussion over there, so that everything remains in one place.

Information about the current user is stored in the session, which expires after thirty minutes without any activity.
After that, the user has to log in again. Applications that need to keep the information for a longer period of time
should store it in the database instead.
"""

ASSISTANT = """
I'll start by looking at the structure of the project to understand how it is organized.

Let me check the current state of the repository and see what has changed.

Let me read the file «path» first to see how «func» is implemented.

Let me take a look at the tests to find out what the expected behavior is.

Now I can see the problem. The function `«func»` is called before the value of `«var»` has been set, so it fails with an
error when there is no default.

I found the issue. In `«path»`, line «small», the condition is the wrong way round: it should be `if not «var»` instead of
`if «var»`.

The tests pass now. I've also added a new test for the case where the list is empty.

All «small» tests pass. Let me run the linter and the type checker as well to make sure that everything is fine.

That didn't work because the file doesn't exist. Let me search for it in the other directories.

Here is a summary of what I did:

Here's what I found:

Here are the results:

I've updated `«path»` so that it handles the case where `«var»` is missing. You can run `«cmd»` to see it.

Now let me update the documentation and the configuration file to match this change.

Next, I'll create a small script that reproduces the problem, so that we can be sure that the fix actually works.

It seems that the error is caused by a difference between the versions. Let me check which version is installed.

I need to know a little more about what you want to do before I can answer this. Could you please tell me which of the
files you would like to change, and whether the old behaviour has to be kept?

Would you like me to go ahead with this change, or would you prefer a different approach?

Let me know if you have any questions, or if there is anything else that I can help you with.

I don't have enough information to say for sure, but the most likely reason is that the service isn't running, or that
the port is already in use.

Based on the data in the table, the total for this month is «num» «currency», which is about «small»% more than last month.

I'm sorry, but I couldn't find an order with that number. Could you check the number and try again?

I've checked your account: the payment of «num» «currency» was received on «date», and the order has been sent to the
address that you gave us.

I've sent the email to «email» and added the meeting to your calendar for «date».

The user wants me to fix the failing test in `«path»`. First I should look at the test and at the code that it tests, then
decide what has to be changed.

The user is asking about how to do this in a way that doesn't break the existing clients. I should consider both options
and explain the trade-offs.

Hmm, wait. That can't be right, because the value is computed after the request has been sent. Let me think about this
again. If the lock is released before the file is closed, another process could read it while it's still being written.

So the next step is to run the command again with more output, and to look at the log.

Great, that works. Now I'll do the same for the other files.

There are three things to note here. First, the query doesn't use the index. Second, it returns more columns than we need.
Third, there's no limit on the number of rows.

You're right, I missed that. I'll change it so that the error message says which file could not be read.

To fix this, you can either increase the timeout, or you can split the work into smaller parts. I'd recommend the second
option, since it also makes it easier to see what went wrong.

I'll use the search tool to find out more about this. According to the sources I found, it was first released in «year».

The build failed with the following error. This looks like a problem with the dependencies rather than with our code.

The implementation is complete. The main changes are in `«path»` and `«path»`; nothing else needs to be changed.

I have everything I need now. I'm going to write the new version of the file.

This is a good question. The short answer is that it depends on how often the data changes and on how many users there are.

Let's go through this step by step.
"""

USER = """
Can you please take a look at «path» and tell me why the tests are failing?

I want to add a new option to the command line tool that lets the user choose the format of the output.

Please fix the bug in `«func»`. It should return an empty list when there are no results, but it raises an exception.

What is the difference between these two, and which one should I use?

How do I run this on my machine? I get an error that says the module could not be found.

Hi, I ordered something last week and it still hasn't arrived. My order number is «num». Can you tell me where it is?

I would like to know how many customers we had in the last three months, and which products they bought the most.

Write a short email to «name» to say that the meeting has been moved to next week because I'm not in the office.

Could you write a function that takes a list of numbers and returns the average, without using any external libraries?

That's not what I meant. I don't want you to change the tests, only the code. Please undo that and try again.

Thanks, that looks good. Now do the same thing for the other files in the «dir» folder, and make sure that all of the
tests still pass.

We need to have this done by tomorrow, so please keep it simple.

I am planning a trip with my family for about a week, and we would like to stay somewhere near the beach. What would you
suggest? We don't want to spend more than «num» in total.

Please summarize the following text in a few sentences and list the most important points.

yes, go ahead

ok thanks, can you also update the readme

The page takes more than ten seconds to load when there are a lot of items. Can we make it faster?

When I click on the button, nothing happens. In the console there is a message: «error»

You are a helpful assistant. Use the tools that are available to you to answer the question of the user. If you don't know
the answer, say so. Always explain what you are going to do before you do it, and ask before you delete anything.

Find all of the places where we use the old API and replace them with the new one. Don't forget the documentation.

It works on my machine but it doesn't work in production. Here is the log:

Please review this pull request and let me know if you see any problems with it.
"""

MARKDOWN = """
## Summary

- **«Word»**: the `«func»` function now returns `None` if there is no `«var»`.
- **«Word»**: added tests for `«class»` in `«path»`.
- **«Word»**: removed the old code, which was no longer used.

%%
## Overview

This project provides a small library for working with «word» data. See the [documentation](https://«host»/docs) for
more information.

## Installation

```bash
pip install «pkg»
```

```bash
npm install «pkg»
```

## Usage

```python
from «module» import «class»

«var» = «class»()
«var».«func»()
```

## Configuration

| Option | Type | Default | Description |
|--------|------|---------|-------------|
| `«var»` | string | `""` | The name of the «word». |
| `«var»` | integer | `«small»` | The maximum number of «word»s. |

## License

MIT

%%
### Changes

1. **Fix the «word» error** - The value is now checked before it is used.
2. **Add a test** - To make sure that this does not happen again.
3. **Update the docs** - The example was out of date.

### Next steps

- [ ] Run the full test suite
- [x] Update the changelog
- [ ] Create a pull request

%%
# «Word» «word»

> **Note:** This is only available in version «ver» and later.

For more details, see `«path»`.

---

%%
**Root cause:** the «word» was not closed when an exception was raised.

**Fix:** use a `with` statement in `«func»()`:

```python
with open(path, "r", encoding="utf-8") as f:
    data = json.load(f)
```

```json
{
  "name": "«word»",
  "version": "«ver»"
}
```

%%
| | Before | After |
|---|---|---|
| Time | «small» ms | «small» ms |
| Size | «num» KB | «num» KB |

"""

CODE = '''
from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import re
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple, Union

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT = 30

%%
class «class»:
    """A «word» that holds the «word» of a «word»."""

    def __init__(self, name: str, value: int = 0, *, parent: Optional["«class»"] = None) -> None:
        self.name = name
        self.value = value
        self._parent = parent
        self._items: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"{self.__class__.__name__}({self.name!r}, {self.value!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, «class»):
            return NotImplemented
        return self.name == other.name

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self):
        return iter(self._items)

    def __getitem__(self, key):
        return self._items[key]

    def __enter__(self):
        return self

    def __exit__(self, exc_type, exc_value, traceback):
        self.close()

    @property
    def is_empty(self) -> bool:
        """Return True if there are no items."""
        return not self._items

    @classmethod
    def from_dict(cls, data: Dict[str, Any]) -> "«class»":
        return cls(**data)

    @staticmethod
    def parse(text: str) -> List[str]:
        return [line.strip() for line in text.splitlines() if line.strip()]

%%
def «func»(path: str, encoding: str = "utf-8") -> list[str]:
    """Return the lines of the file.

    Args:
        path: The path of the file.
        encoding: The encoding of the file.

    Returns:
        A list of strings.

    Raises:
        ValueError: If the file is empty.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"File not found: {path}")
    with open(path, encoding=encoding) as f:
        lines = f.readlines()
    if not lines:
        raise ValueError("the file must not be empty")
    return lines

%%
    def «func»(self, *args, **kwargs):
        """Set the value of the given option."""
        if value is None:
            value = self.default
        elif isinstance(value, (list, tuple)):
            value = list(value)
        else:
            raise TypeError("expected a string, got %s" % type(value).__name__)
        try:
            result = self.get(key)
        except KeyError:
            return None
        except (OSError, ValueError) as e:
            logger.warning("Could not read %s: %s", path, e)
            raise
        finally:
            self.close()
        for i in range(len(result)):
            if result[i] != expected[i]:
                continue
            break
        while True:
            line = self.readline()
            if not line:
                break
            self.append(line)
        return self.«func»(result, default=False)

%%
    # If there is no name, use the default.
    # This is needed because the first element may be None.
    for key, value in sorted(self.items()):
        if key not in seen:
            seen.add(key)
            result.append((key, value))
    for index, item in enumerate(items):
        print(f"{index}: {item}")
    assert len(result) == «small»
    assert result is not None
    return "".join(parts)

%%
async def «func»(session: AsyncSession, user_id: int) -> User | None:
    result = await session.execute(select(User).where(User.id == user_id))
    return result.scalar_one_or_none()


@pytest.mark.asyncio
async def test_«func»(client):
    response = await client.get(f"/api/v1/users/{user_id}")
    assert response.status_code == 200
    assert response.json() == {"id": 1, "name": "test"}

%%
@app.get("/«word»s/{«var»_id}")
def get_«func»(«var»_id: int, db: Session = Depends(get_db)):
    item = db.query(«class»).filter(«class».id == «var»_id).first()
    if item is None:
        raise HTTPException(status_code=404, detail="Not found")
    return item

%%
@dataclass(frozen=True)
class «class»(BaseModel):
    id: int
    name: str
    description: str | None = None
    created_at: datetime = field(default_factory=datetime.now)
    tags: list[str] = field(default_factory=list)
    is_active: bool = True

%%
import unittest

class Test«class»(unittest.TestCase):
    def setUp(self):
        self.client = Client()

    def test_«func»(self):
        with self.assertRaises(ValueError):
            self.client.«func»(None)
        self.assertEqual(len(result), «small»)
        self.assertTrue(result)


if __name__ == "__main__":
    unittest.main()

%%
def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", "-o", type=str, default=None, help="where to write the result")
    parser.add_argument("--verbose", action="store_true", help="print more")
    args = parser.parse_args()
    return 0


if __name__ == "__main__":
    sys.exit(main())

%%
import pandas as pd
import numpy as np
import matplotlib.pyplot as plt

df = pd.read_csv("«file».csv")
df = df[df["«var»"] > 0].groupby("«var»").agg({"«var»": "sum"}).reset_index()
print(df.head(10))
print(df.describe())
response = requests.get(url, params=params, headers=headers, timeout=30)
response.raise_for_status()
data = response.json()

%%
import React, { useState, useEffect } from 'react';
import { «class» } from './«file»';
import type { «class»Props } from '../types';

export default function «class»({ items, onChange }: «class»Props) {
  const [loading, setLoading] = useState<boolean>(false);
  const [error, setError] = useState<string | null>(null);

  useEffect(() => {
    setLoading(true);
    fetch(`/api/«word»s/${id}`)
      .then((res) => res.json())
      .then((data) => setItems(data.items))
      .catch((err) => setError(err.message))
      .finally(() => setLoading(false));
  }, [id]);

  if (loading) return <div className="loading">Loading...</div>;

  return (
    <div className="container">
      {items.map((item) => (
        <li key={item.id} onClick={() => onChange(item)}>{item.name}</li>
      ))}
      <button type="submit" disabled={loading}>Save</button>
    </div>
  );
}

%%
const express = require('express');
const app = express();

app.use(express.json());

app.post('/api/«word»s', async (req, res) => {
  try {
    const { name, email } = req.body;
    if (!name) {
      return res.status(400).json({ error: 'Name is required' });
    }
    const result = await db.query('SELECT * FROM users WHERE id = $1', [req.params.id]);
    res.status(201).json(result.rows[0]);
  } catch (error) {
    console.error('Error:', error);
    res.status(500).json({ error: 'Internal server error' });
  }
});

module.exports = { «func» };

%%
export interface «class» {
  id: string;
  name: string;
  description?: string;
  createdAt: Date;
  updatedAt: Date;
  status: 'active' | 'inactive' | 'pending';
}

export async function «func»(id: string): Promise<«class» | undefined> {
  const response = await fetch(`${BASE_URL}/«word»s/${id}`, {
    method: 'GET',
    headers: { 'Content-Type': 'application/json', Authorization: `Bearer ${token}` },
  });
  if (!response.ok) {
    throw new Error(`Request failed with status ${response.status}`);
  }
  return response.json();
}

export class «class»Service {
  private readonly items: Map<string, «class»> = new Map();

  constructor(private config: Config) {}

  public get(key: string): string | undefined {
    return this.items.get(key)?.name ?? null;
  }
}

%%
describe('«class»', () => {
  beforeEach(() => {
    jest.clearAllMocks();
  });

  it('should return an empty array', async () => {
    const result = await «func»();
    expect(result).toEqual([]);
    expect(result.length).toBe(0);
  });
});

%%
function «func»(value) {
  var result = [];
  for (let i = 0; i < value.length; i++) {
    if (typeof value[i] === 'string' && value[i] !== '') {
      result.push(value[i].trim());
    } else if (value[i] === undefined || value[i] === null) {
      continue;
    }
  }
  return result;
}

const «var» = Object.keys(data).filter((key) => key !== 'id').map((key) => data[key]);
document.getElementById('«word»').addEventListener('click', function (event) {
  event.preventDefault();
});

%%
package main

import (
	"context"
	"fmt"
	"net/http"
)

func (s *«class») «Word»(ctx context.Context, id string) (*«class», error) {
	result, err := s.repo.Get(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("failed to get «word»: %w", err)
	}
	return result, nil
}

%%
use std::collections::HashMap;

#[derive(Debug, Clone)]
pub struct «class» {
    pub name: String,
    items: Vec<String>,
}

impl «class» {
    pub fn new(name: &str) -> Self {
        Self { name: name.to_string(), items: Vec::new() }
    }

    pub fn get(&self, key: &str) -> Option<&String> {
        match self.items.iter().find(|item| item.as_str() == key) {
            Some(value) => Some(value),
            None => None,
        }
    }
}

%%
package com.example.«word»;

import java.util.ArrayList;
import java.util.List;

public class «class» {
    private final String name;
    private static final int MAX_SIZE = 100;

    public «class»(String name) {
        this.name = name;
    }

    @Override
    public String toString() {
        return "«class»{name='" + name + "'}";
    }

    public List<String> getItems() throws IOException {
        if (items == null) {
            throw new IllegalArgumentException("items must not be null");
        }
        return new ArrayList<>(items);
    }
}

%%
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int «func»(const char *name, size_t len)
{
    int ret = 0;
    struct «var» *p = NULL;

    if (name == NULL || len == 0)
        return -1;
    p = malloc(sizeof(*p));
    memcpy(p, name, len);
    free(p);
    return ret;
}

%%
SELECT u.id, u.name, u.email, COUNT(o.id) AS order_count, SUM(o.total) AS total_amount
FROM users u
LEFT JOIN orders o ON o.user_id = u.id
WHERE u.created_at >= '«date»' AND u.status = 'active'
GROUP BY u.id, u.name
HAVING COUNT(*) > 1
ORDER BY total_amount DESC
LIMIT 10;

%%
CREATE TABLE IF NOT EXISTS «table» (
    id SERIAL PRIMARY KEY,
    user_id INTEGER NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    name VARCHAR(255) NOT NULL,
    description TEXT,
    status VARCHAR(50) DEFAULT 'pending',
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP
);
CREATE INDEX idx_«table»_user_id ON «table» (user_id);
INSERT INTO «table» (id, name, status) VALUES (1, '«word»', 'active');
UPDATE «table» SET status = 'done' WHERE id = «small»;
DELETE FROM «table» WHERE id IN (SELECT id FROM «table» WHERE name IS NULL);

%%
<!DOCTYPE html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <title>«Word»</title>
  <link rel="stylesheet" href="/static/style.css">
  <script src="https://«host»/app.js"></script>
</head>
<body>
  <div class="row">
    <h1>«Word»</h1>
    <p>The «word» of the <a href="https://«host»/«word»">«word»</a></p>
    <ul>
      <li><span class="title">«word»</span></li>
    </ul>
    <form method="post" action="/login"><input type="text" name="email" id="email" value=""></form>
    <table><tr><th>Name</th><td>«num»</td></tr></table>
    <img src="/images/«word».png" alt="«word»">
  </div>
</body>
</html>

%%
.container {
  display: flex;
  justify-content: center;
  align-items: center;
  width: 100%;
  max-width: 1200px;
  margin: 0 auto;
  padding: 10px 20px;
  background-color: #fff;
  border: 1px solid #ccc;
  border-radius: 4px;
  font-size: 14px;
  color: #333;
}

%%
name: CI

on:
  push:
    branches: [main]
  pull_request:

jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - name: Set up Python
        uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install -r requirements.txt
      - run: pytest

%%
version: "3.8"
services:
  web:
    image: python:3.11-slim
    ports:
      - "8000:8000"
    environment:
      - DATABASE_URL=postgresql://user:password@db:5432/app
    depends_on:
      - db
    restart: always

%%
apiVersion: apps/v1
kind: Deployment
metadata:
  name: «word»
  namespace: default
  labels:
    app: «word»
spec:
  replicas: 2
  template:
    spec:
      containers:
        - name: «word»
          image: «word»:latest

%%
[project]
name = "«pkg»"
version = "«ver»"
description = "A library for «word»"
requires-python = ">=3.10"
dependencies = [
    "requests>=2.31",
    "pydantic>=2.0",
]

[tool.pytest.ini_options]
testpaths = ["tests"]

%%
{
  "name": "«pkg»",
  "version": "«ver»",
  "private": true,
  "scripts": {
    "dev": "vite",
    "build": "tsc && vite build",
    "test": "jest",
    "lint": "eslint ."
  },
  "dependencies": {
    "react": "^18.2.0",
    "typescript": "^5.3.0"
  },
  "devDependencies": {
    "@types/node": "^20.0.0"
  }
}

%%
#!/usr/bin/env bash
set -euo pipefail

cd "$(dirname "$0")"
if [ ! -f "$1" ]; then
  echo "Usage: $0 <file>" >&2
  exit 1
fi
for f in *.txt; do
  echo "Processing $f"
done
export PATH="$HOME/.local/bin:$PATH"

%%
FROM python:3.12-slim

WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY . .
ENV PYTHONUNBUFFERED=1
EXPOSE 8000
CMD ["python", "-m", "app"]

'''

OUTPUT = """
Traceback (most recent call last):
  File "/app/«path»", line «small», in <module>
    main()
  File "/app/«path»", line «small», in «func»
    result = self.«func»(«var»)
             ^^^^^^^^^^^^^^^^^^
  File "/usr/local/lib/python3.12/site-packages/«module»/«file».py", line «small», in «func»
    raise ValueError(message)
«error»

%%
============================= test session starts ==============================
platform linux -- Python 3.12.3, pytest-8.3.2, pluggy-1.5.0
rootdir: /home/user/project
configfile: pyproject.toml
collected «small» items

tests/test_«file».py ......F...                                         [ 45%]
tests/test_«file».py ..........                                         [100%]

=================================== FAILURES ===================================
_______________________________ test_«func» ________________________________

    def test_«func»():
>       assert «func»("«word»") == «small»
E       AssertionError: assert None == «small»
E        +  where None = «func»('«word»')

tests/test_«file».py:«small»: AssertionError
=========================== short test summary info ============================
FAILED tests/test_«file».py::test_«func» - AssertionError: assert None == «small»
========================= 1 failed, «small» passed in 0.«small»s =========================

%%
..........................................                               [100%]
«small» passed in 1.«small»s

%%
diff --git a/«path» b/«path»
index «hex7»..«hex7» 100644
--- a/«path»
+++ b/«path»
@@ -«small»,7 +«small»,9 @@ def «func»(self):
     def «func»(self, value):
-        return self.«var»
+        if value is None:
+            return None
+        return self.«var».get(value, default)

%%
On branch main

Changes not staged for commit:
	modified:   «path»
	modified:   «path»

Untracked files:
	«path»

%%
commit «sha»
Author: «name» <«email»>
Date:   Mon Mar «day» «clock» 2026 +0000

    Fix the «word» of the «word»

 «path» | «small» +++++-----
 2 files changed, «small» insertions(+), «small» deletions(-)

%%
total «small»
drwxr-xr-x  5 user user  4096 Jan «day» 10:15 .
drwxr-xr-x 12 root root  4096 Jan «day» 09:30 ..
-rw-r--r--  1 user user   «num» Feb «day» 14:22 README.md
-rw-r--r--  1 user user   «num» Mar «day» 11:05 pyproject.toml
-rwxr-xr-x  1 user user   «num» Apr «day» 16:40 «file».sh
drwxr-xr-x  2 user user  4096 May «day» 12:00 src
drwxr-xr-x  3 user user  4096 Jun «day» 08:10 tests
lrwxrwxrwx  1 root root     7 Jul «day» 13:50 node_modules

%%
src/«path»:«small»:from «module» import «class»
src/«path»:«small»:    def «func»(self, «var»):
src/«path»:«small»:        return self.«var»
./«path»:«small»:import «module»
./tests/test_«file».py:«small»:def test_«func»():

%%
.
├── README.md
├── package.json
├── src
│   ├── __init__.py
│   ├── «file».py
│   ├── index.ts
│   └── utils.py
└── tests
    └── test_«file».py

%%
     1	import os
     2	import sys
     3	import json
     4	from «module» import «func»
     5	from «module» import «class»
     6	@property
     7	def «func»(«var»):
     8	    return «var»
     9	# «word»
    10	@dataclass
    11	class «class»:
    12	    pass
    13	    name: str
    14	    def «func»(self) -> None:
    15	        self.«var» = None

%%
«iso» INFO  [main] Starting server on http://localhost:8000
«iso» INFO  «module».«file» - request completed method=GET path=/api/«word» status=200 duration_ms=«small»
«iso» WARNING «module».«file» - retrying in «small» seconds (attempt 2 of 5)
«iso» ERROR «module».«file» - connection refused: could not connect to the server at 127.0.0.1:5432
«iso» DEBUG «module».«file»: cache miss for key user:«num»

%%
127.0.0.1 - - [«day»/Jan/2026:«clock» +0000] "GET /api/«word»s?page=1&limit=20 HTTP/1.1" 200 «num» "-" "Mozilla/5.0"

%%
npm ERR! code ELIFECYCLE
npm ERR! errno 1
added «num» packages, and audited «num» packages in «small»s
found 0 vulnerabilities

%%
Collecting «pkg»
  Downloading «pkg»-«ver»-py3-none-any.whl (12 kB)
Requirement already satisfied: «pkg» in ./.venv/lib/python3.12/site-packages (from «pkg»>=1.0) («ver»)
Installing collected packages: «pkg»
Successfully installed «pkg»-«ver»

%%
src/«path»:«small»:5: error: expected "str", got "str | None"  [return-value]
src/«path»:«small»:1: F401 [*] `«module»` imported but unused
Found 1 error in 1 file (checked «small» source files)
All checks passed!

%%
src/«file».ts(«small»,5): error TS2322: expected 'string', got 'string | undefined'.
TypeError: «var» is undefined
    at «func» (/app/src/«file».js:«small»:15)
    at async Object.<anonymous> (/app/src/index.js:«small»:7)

%%
The file «path» has been updated successfully.
%%
File created successfully at: «path»
%%
Successfully wrote «num» bytes to «path»
%%
Error: No such file or directory: '«path»'
%%
bash: line 1: «word»: command not found
Exit code: 127
%%
cat: «path»: No such file or directory
%%
No matches found
%%
Found «small» files
/home/user/project/«path»
/home/user/project/«path»
/home/user/project/«path»
%%
UserWarning: «word» is deprecated and will be removed in a future version. Use «word» instead.
%%
Filesystem      Size  Used Avail Use% Mounted on
/dev/sda1        50G   «small»G   «small»G  «small»% /
%%
  PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
%%
 id |   name   | status  |     created_at
----+----------+---------+---------------------
  1 | «word» | active  | «date» «clock»
  2 | «word» | pending | «date» «clock»
(2 rows)
%%
id,name,email,status,created_at
«small»,«name»,«email»,active,«date»
«small»,«name»,«email»,inactive,«date»
%%
HTTP/1.1 200 OK
content-type: application/json; charset=utf-8
content-length: «num»
cache-control: no-cache
%%
1. «Word» «word» - «Word»
   URL: https://www.«host»/«word»/«word»-«word»
   Published: «date»
   A guide to the best «word» in «year», with everything you need to know about how it works and what it costs.
%%
Search results for "«word» «word»":

Title: How to «word» a «word» | «Word»
Source: https://en.«host»/wiki/«Word»
"""

DATA = """
{"error": {"code": "not_found", "message": "The requested resource could not be found.", "status": 404}}
%%
{"success": true, "message": "Operation completed successfully", "data": null}
%%
{"ok": false, "error": "«error»"}
%%
{"type": "object", "properties": {"«var»": {"type": "string", "description": "The name of the «word»"}, "limit":
{"type": "integer", "default": 10}}, "required": ["«var»"], "additionalProperties": false}
%%
{"status": "ok", "count": «small», "items": [], "next_page": null, "has_more": false}
%%
{"location": "«city»", "temperature": «small», "unit": "celsius", "condition": "partly cloudy", "humidity": «small»}
%%
{"jsonrpc": "2.0", "id": «small», "result": {"content": [{"type": "text", "text": "«word»"}], "isError": false}}
%%
{"id": "msg_«id»", "type": "message", "role": "assistant", "content": [{"type": "text", "text": "«word»"}]}
%%
{"stdout": "«word»\\n", "stderr": "", "exit_code": 0, "duration_ms": «small»}
%%
{"columns": ["id", "name", "total"], "rows": [[1, "«word»", «small».5], [2, "«word»", «small».0]], "row_count": 2}
"""

KEYS = """
id:id name:name type:kind status:status created_at:iso updated_at:iso url:url title:title description:sentence
email:email count:int total:price message:sentence value:int price:price amount:price currency:currency user_id:int
customer_id:uuid order_id:order product_id:int quantity:tiny category:word tags:tags is_active:bool active:bool
enabled:bool first_name:first last_name:last phone:phone address:address city:city country:country zip_code:int
key:word label:word text:sentence content:sentence summary:sentence author:name username:first role:role
date:date timestamp:iso start_date:date end_date:date due_date:date start_time:iso end_time:iso duration:int
size:int length:int width:int height:int index:tiny page:tiny per_page:tiny limit:tiny offset:tiny next:null
parent_id:null path:path file:path line:int version:ver code:word score:ratio rating:ratio confidence:ratio
latitude:ratio longitude:ratio priority:priority state:status source:word target:word language:lang image:url
link:url metadata:empty options:empty results:list items:list errors:list children:list completed:bool success:bool
uuid:uuid sku:order stock:int discount:ratio tax:price shipping:price payment_method:word company:title
userId:int createdAt:iso updatedAt:iso firstName:first lastName:last isActive:bool lastLogin:iso
"""

FILLERS = {
    "path": """src/main.py src/app.py src/utils.py src/index.ts tests/test_main.py tests/test_utils.py README.md
        src/components/App.tsx app/models/user.py app/api/routes.py config/settings.py lib/utils/helpers.js
        package.json pyproject.toml docs/index.md src/config.py src/server/index.js scripts/build.sh core/database.py
        src/services/auth.ts src/models.py api/views.py internal/server.go src/lib.rs data/input.csv""",
    "dir": "src tests docs app lib scripts config data components services utils",
    "file": """main utils config models views routes client server database helpers auth users orders parser index
        service handler test_data settings types schema""",
    "module": "app app.models app.utils core.config utils typing json project.services lib.client src.main os.path",
    "func": """get_user load_config parse_args process_data create_order handle_request validate_input read_file
        update_status send_message to_dict from_json get_items fetch_data calculate_total format_date main run setup
        getUser loadConfig handleSubmit fetchData processItems""",
    "var": """value name key data result items config user path index count total options request response message
        user_id file_name start end text lines current""",
    "class": """User Order Config Client Server Parser Handler Session Product Message DataLoader UserService Request
        Response Database Item Node Task Event BaseModel Manager""",
    "kind": "user order message file text string object function event image product task article payment",
    "status": "active inactive pending completed failed done open closed running success error paid shipped cancelled",
    "role": "admin user assistant system member owner guest manager",
    "priority": "low medium high urgent normal",
    "lang": "en de fr es ja python en-US",
    "currency": "USD EUR GBP",
    "first": "Alice Bob Maria John Anna David Sarah Michael Emma James Laura Peter Daniel Sofia Thomas Lisa Mark Julia",
    "last": "Smith Johnson Miller Brown Garcia Jones Davis Wilson Martin Anderson Taylor Moore Lee Clark Lewis Walker",
    "city": "London Berlin Paris Tokyo Madrid Boston Chicago Seattle Toronto Sydney Amsterdam Vienna Dublin Denver",
    "country": "US DE FR GB ES CA JP Germany France Spain Canada Japan",
    "host": "example.com api.example.com www.example.org docs.example.com github.com localhost:8000 example.net",
    "pkg": "requests numpy pandas flask django fastapi react express lodash pytest pydantic sqlalchemy httpx axios",
    "table": "users orders products customers payments sessions messages items events invoices",
    "cmd": """pytest|git status|git diff|npm test|npm run build|python main.py|ls -la|pytest -q|git log --oneline -10|
        pip install -r requirements.txt|cd src && ls|make test|docker compose up -d|python -m pytest tests/ -v|
        pytest -x -q 2>&1 | tail -20|find . -name "*.py" -not -path "*/node_modules/*" | head -50|
        grep -rn "TODO" src/ --include="*.py"|cat package.json|git add -A && git commit -m "Fix"|curl -s http://localhost:8000/|
        ls|pwd|npx tsc --noEmit|ruff check .|mkdir -p data|sed -n '1,100p' src/main.py|git diff HEAD~1 --stat""",
    "error": """ValueError: invalid literal for int() with base 10|KeyError: 'name'|TypeError: 'NoneType' object is not
        iterable|ModuleNotFoundError: No module named 'app'|AttributeError: 'NoneType' object has no attribute 'get'|
        TimeoutError: the operation timed out|FileNotFoundError: [Errno 2] No such file or directory|ImportError: cannot
        import name|TypeError: expected str, got int|ConnectionError: connection refused|IndexError: list index out of
        range|PermissionError: [Errno 13] Permission denied|RuntimeError: event loop is closed""",
}
"""What a placeholder may become; names are split at spaces, commands and errors at bars."""
