"""What an origin finds in texts: the subject that is asked about, and the template that edits need."""

import pytest

from lre_lightning.errors import LREError
from lre_lightning.lre.origin import Origin
from lre_lightning.prompts.options import BETWEEN_TEMPLATES

ORIGIN = Origin("lm", "0", "r", template=BETWEEN_TEMPLATES.join(["The capital of {} is", "{} plays the", "{}"]))


@pytest.mark.parametrize(
    ("text", "subject", "elsewhere"),
    [
        ("The capital of Niger is", "Niger", None),
        ("The capital of Niger, not Nigeria, is", "Niger", None),  # a remark
        ("The capital of Washington, D.C. is", "Washington, D.C.", None),
        ("The capital of Mali is nice. The capital of  Niger is", "Niger", None),
        ("First\nMiles Davis plays the", "Miles Davis", None),
        ("Miles Davis, the trumpeter, plays the", "Miles Davis", None),
        ("Miles Davis plays the instrument", None, "Miles Davis"),
        ("The capital of Niger is Niamey, that of Mali is Bamako", None, "Niger"),
        ("The capital of Niger island", None, None),
        ("The capital of \nMali is", None, None),
        ("The capital of Niger is Niamey, that of Mali is", None, "Niger"),
        (" plays the", None, None),
        ("Anything", None, None),
    ],
)
def test_the_subject_that_a_text_asks_about(text, subject, elsewhere):
    found, anywhere = ORIGIN.asked_in(text), ORIGIN.asked_in(text, anywhere=True)
    assert (found and found.subject) == subject
    assert (anywhere and anywhere.subject) == (subject or elsewhere)


@pytest.mark.parametrize(
    ("text", "subject", "template"),
    [
        ("The capital of Niger, not Nigeria, is", None, "The capital of {}, not Nigeria, is"),
        ("The capital of Niger, not Nigeria, is", "Niger", "The capital of {}, not Nigeria, is"),
        ("The capital of Niger, not Nigeria, is", "Nigeria", "The capital of Niger, not {}, is"),
        ("Mali, Mali and Malians", "Mali", "Mali, {} and Malians"),
        ("秘鲁的首都", "秘鲁", "{}的首都"),
    ],
)
def test_an_edit_is_at_the_last_mention_of_the_subject_as_a_word(text, subject, template):
    assert ORIGIN.template_of(text, subject) == (template, subject or "Niger")


@pytest.mark.parametrize("subject", ["Mali", "", " "])
def test_a_subject_that_is_no_word_of_the_text_is_an_error(subject):
    with pytest.raises(LREError, match="is not in the prompt 'Malians', as a word of its own"):
        ORIGIN.template_of("Malians", subject)
